"""Chat and text completions in OpenAI's shapes: types, of which the OpenAPI document is made, and how each is filled.

A field that is UNSET is left out.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from cloud_gateway.api.errors import error_object
from cloud_gateway.api.generation import ServedModel
from cloud_gateway.api.parameters import Annotations, Annotator, Call
from cloud_gateway.api.usage import Counts, Timings
from edgespec.core.errors import ClientError

Finish = Literal["stop", "length", "tool_calls"]


class Closed(Struct, forbid_unknown_fields=True):
    """Base of the responses: exactly these fields."""


class Health(Closed):
    """`GET /healthz`."""

    status: Literal["ok", "loading", "draining"]


class Model(Closed, kw_only=True):
    """A served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "edgespec"
    learn: bool
    """Whether workers may keep the texts of the asking API key to learn from them."""


class Models(Closed, kw_only=True):
    """`GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[Model]


class Welcome(Closed):
    """`GET /`: paths to begin with."""

    openapi: str = "/openapi.json"
    models: str = "/v1/models"
    health: str = "/health"
    pages: dict[str, str] = {}
    """Paths for people, to open in a browser."""


class Version(Closed):
    """`GET /version`."""

    version: str


class Tokens(Closed):
    """`POST /tokenize`, as vLLM has it."""

    count: int
    max_model_len: int
    tokens: list[int]


class CallFunction(Closed):
    """The function that the model calls, `arguments` being JSON in a string."""

    name: str
    arguments: str


class ToolCall(Closed, kw_only=True):
    """One call; in streams with its index."""

    index: int | UnsetType = UNSET
    id: str
    type: Literal["function"] = "function"
    function: CallFunction


class AssistantMessage(Closed, kw_only=True):
    """The completion."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Delta(Closed):
    """What an event adds to it."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(Closed):
    """One of `n`."""

    index: int
    message: AssistantMessage
    logprobs: Annotations | None
    finish_reason: Finish | None


class DeltaChoice(Closed):
    """A part of one."""

    index: int
    delta: Delta
    logprobs: Annotations | None = None
    finish_reason: Finish | None = None


class TextChoice(Closed):
    """One of `n`, or a part of one."""

    index: int
    text: str
    logprobs: Annotations | None
    finish_reason: Finish | None


class Enveloped(Closed):
    """What all responses of a completion share."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatCompletion(Enveloped, kw_only=True):
    """`POST /v1/chat/completions`."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Counts
    timings: Timings


class ChatChunk(Enveloped, kw_only=True):
    """One event of its stream."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[DeltaChoice]
    usage: Counts | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET


class TextCompletion(Enveloped, kw_only=True):
    """`POST /v1/completions`."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]
    usage: Counts
    timings: Timings


class TextChunk(Enveloped, kw_only=True):
    """One event of its stream."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]
    usage: Counts | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class TextPiece:
    """New text of a completion, or all of it, and what is said about the tokens that begin in it."""

    text: str
    annotations: Sequence[object] = ()
    annotator: Annotator | None = None
    """None if the request has none."""

    @property
    def logprobs(self) -> Annotations | None:
        """The field of the choice."""
        if self.annotator is None:
            return None
        return self.annotator.written(self.annotations)


@dataclass(frozen=True, slots=True)
class End:
    """How a completion ended, and the tools that it calls."""

    finish: Finish | None
    calls: Sequence[Call] = ()


class Form(ABC):
    """How one response is written, as a whole or as a stream; its id, time and model stand in every part of it.

    The choices of a stream: an `opening`, any number of pieces, a `closing`; after all of them `counts`.
    """

    prefix: str
    always_counts = False
    """Whether a stream ends with its counts also if the request does not ask for them."""

    def __init__(self, model: ServedModel, body: Any) -> None:
        """`body`: of the request, whose name for the model every response repeats, and some of its other fields."""
        self.usage: Counts | UnsetType | None = UNSET
        """Of the next event of a stream."""
        self.common: dict[str, Any] = {
            "id": self.prefix + secrets.token_hex(12),
            "created": int(time.time()),
            "model": body.model,
            "system_fingerprint": model.fingerprint,
        }

    @abstractmethod
    def whole(self, outputs: Sequence[tuple[TextPiece, End]], usage: Counts, timings: Timings) -> Struct:
        """The response of a request without `stream`."""

    @abstractmethod
    def piece(self, index: int, piece: TextPiece) -> Iterator[Struct]:
        """The events of new text."""

    @abstractmethod
    def closing(self, index: int, end: End) -> Iterator[Struct]:
        """The last events of a choice."""

    @abstractmethod
    def counts(self, usage: Counts, timings: Timings) -> Iterator[Struct]:
        """What a stream ends with."""

    def opening(self, index: int) -> Iterator[Struct]:
        """The first events of a choice."""
        return iter(())

    def failure(self, error: ClientError) -> Struct:
        """What a stream ends with when it fails."""
        return error_object(error)


class ChatForm(Form):
    """Chat completions."""

    prefix = "chatcmpl-"

    def whole(self, outputs: Sequence[tuple[TextPiece, End]], usage: Counts, timings: Timings) -> Struct:
        choices = []
        for index, (piece, end) in enumerate(outputs):
            message = AssistantMessage(content=piece.text)
            if end.calls:
                message = AssistantMessage(content=piece.text.strip() or None, tool_calls=list(map(_call, end.calls)))
            choices.append(ChatChoice(index, message, piece.logprobs, end.finish))

        return ChatCompletion(**self.common, choices=choices, usage=usage, timings=timings)

    def opening(self, index: int) -> Iterator[Struct]:
        yield self._chunk(DeltaChoice(index, Delta(role="assistant", content="")))

    def piece(self, index: int, piece: TextPiece) -> Iterator[Struct]:
        yield self._chunk(DeltaChoice(index, Delta(content=piece.text), piece.logprobs))

    def closing(self, index: int, end: End) -> Iterator[Struct]:
        if end.calls:
            yield self._chunk(
                DeltaChoice(index, Delta(tool_calls=[_call(call, n) for n, call in enumerate(end.calls)]))
            )
        yield self._chunk(DeltaChoice(index, Delta(), finish_reason=end.finish))

    def counts(self, usage: Counts, timings: Timings) -> Iterator[Struct]:
        yield ChatChunk(**self.common, choices=[], usage=usage, timings=timings)

    def _chunk(self, choice: DeltaChoice) -> ChatChunk:
        return ChatChunk(**self.common, choices=[choice], usage=self.usage)


class TextForm(Form):
    """Text completions, which have no opening and no tools."""

    prefix = "cmpl-"

    def whole(self, outputs: Sequence[tuple[TextPiece, End]], usage: Counts, timings: Timings) -> Struct:
        choices = [_text_choice(index, piece, end.finish) for index, (piece, end) in enumerate(outputs)]
        return TextCompletion(**self.common, choices=choices, usage=usage, timings=timings)

    def piece(self, index: int, piece: TextPiece) -> Iterator[Struct]:
        yield TextChunk(**self.common, choices=[_text_choice(index, piece)], usage=self.usage)

    def closing(self, index: int, end: End) -> Iterator[Struct]:
        yield TextChunk(**self.common, choices=[_text_choice(index, TextPiece(""), end.finish)], usage=self.usage)

    def counts(self, usage: Counts, timings: Timings) -> Iterator[Struct]:
        yield TextChunk(**self.common, choices=[], usage=usage, timings=timings)


def _text_choice(index: int, piece: TextPiece, finish: Finish | None = None) -> TextChoice:
    return TextChoice(index, piece.text, piece.logprobs, finish)


def _call(call: Call, index: int | UnsetType = UNSET) -> ToolCall:
    return ToolCall(id=call.id, function=CallFunction(name=call.name, arguments=call.arguments), index=index)
