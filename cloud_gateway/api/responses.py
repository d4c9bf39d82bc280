"""The API's responses in OpenAI's shapes: their types, from which the OpenAPI document is made, and how each is filled.

A field that is UNSET is left out.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from cloud_gateway.api.limits import ServedModel
from cloud_gateway.api.tools import Call
from cloud_gateway.api.usage import Counts
from cloud_gateway.core.verify.interface import TokenLogprob as Scored

Finish = Literal["stop", "length", "tool_calls"]
Spell = Callable[[int], bytes]
"""The bytes of one token."""


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


class Models(Closed, kw_only=True):
    """`GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[Model]


class TopLogprob(Closed):
    """One alternative."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """One token, and its alternatives."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Closed):
    """`logprobs` of a chat."""

    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(Closed):
    """`logprobs` of a text completion; the token itself is among its alternatives, as in OpenAI's API."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


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
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class DeltaChoice(Closed):
    """A part of one."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: Finish | None = None


class TextChoice(Closed):
    """One of `n`, or a part of one."""

    index: int
    text: str
    logprobs: TextLogprobs | None
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


class ChatChunk(Enveloped, kw_only=True):
    """One event of its stream."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[DeltaChoice]
    usage: Counts | UnsetType | None = UNSET


class TextCompletion(Enveloped, kw_only=True):
    """`POST /v1/completions`."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]
    usage: Counts


class TextChunk(Enveloped, kw_only=True):
    """One event of its stream."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]
    usage: Counts | UnsetType | None = UNSET


@dataclass(frozen=True, slots=True)
class Entry:
    """One token of a completion; `offset`: characters of the completion before the token's text."""

    spelling: bytes
    logprob: float
    top: Sequence[tuple[bytes, float]]
    offset: int


def entry(token: int, info: Scored, offset: int, spell: Spell) -> Entry:
    """The engine's log-probabilities of a token, with tokens spelled as bytes."""
    return Entry(spell(token), info.logprob, [(spell(other), logprob) for other, logprob in info.top], offset)


class ChatFormat:
    """Chat completions."""

    prefix, whole, chunk = "chatcmpl-", ChatCompletion, ChatChunk

    def opening(self, index: int) -> DeltaChoice | None:
        """The first chunk's choice, which names the role."""
        return DeltaChoice(index=index, delta=Delta(role="assistant", content=""))

    def piece(self, index: int, text: str, entries: Sequence[Entry] | None) -> DeltaChoice:
        """A chunk's choice with new text."""
        return DeltaChoice(index=index, delta=Delta(content=text), logprobs=_chat_logprobs(entries))

    def calls(self, index: int, calls: Sequence[Call]) -> DeltaChoice:
        """A chunk's choice with all tool calls of the completion."""
        return DeltaChoice(index=index, delta=Delta(tool_calls=[_call(call, n) for n, call in enumerate(calls)]))

    def closing(self, index: int, finish: Finish | None) -> DeltaChoice:
        """The last chunk's choice, with the finish reason."""
        return DeltaChoice(index=index, delta=Delta(), finish_reason=finish)

    def choice(
        self, index: int, text: str, finish: Finish | None, entries: Sequence[Entry] | None, calls: Sequence[Call]
    ) -> ChatChoice:
        """A whole choice."""
        message = AssistantMessage(content=text)
        if calls:
            message = AssistantMessage(content=text.strip() or None, tool_calls=list(map(_call, calls)))
        return ChatChoice(index=index, message=message, logprobs=_chat_logprobs(entries), finish_reason=finish)


class TextFormat:
    """Text completions, which have no opening chunk and no tools."""

    prefix, whole, chunk = "cmpl-", TextCompletion, TextChunk

    def opening(self, index: int) -> TextChoice | None:
        """No choice."""
        return None

    def piece(self, index: int, text: str, entries: Sequence[Entry] | None) -> TextChoice:
        """A chunk's choice with new text."""
        return self.choice(index, text, None, entries)

    def calls(self, index: int, calls: Sequence[Call]) -> TextChoice:
        """Never called."""
        raise NotImplementedError

    def closing(self, index: int, finish: Finish | None) -> TextChoice:
        """The last chunk's choice."""
        return self.choice(index, "", finish)

    def choice(
        self,
        index: int,
        text: str,
        finish: Finish | None,
        entries: Sequence[Entry] | None = None,
        calls: Sequence[Call] = (),
    ) -> TextChoice:
        """A whole choice, or a part of one."""
        return TextChoice(index=index, text=text, logprobs=_text_logprobs(entries), finish_reason=finish)


Format = ChatFormat | TextFormat


class Envelope:
    """The fields that all objects of one response share: id, time, model, fingerprint."""

    def __init__(self, form: Format, model: ServedModel) -> None:
        self.form = form
        self._common: dict[str, Any] = {
            "id": form.prefix + secrets.token_hex(12),
            "created": int(time.time()),
            "model": model.id,
            "system_fingerprint": model.fingerprint,
        }

    def whole(self, choices: Sequence[Any], usage: Counts) -> Enveloped:
        """The response of a request without `stream`."""
        return self.form.whole(**self._common, choices=list(choices), usage=usage)

    def chunk(self, choice: Any | None, usage: Counts | UnsetType | None) -> Enveloped:
        """One event of a stream."""
        return self.form.chunk(**self._common, choices=[] if choice is None else [choice], usage=usage)


def _call(call: Call, index: int | UnsetType = UNSET) -> ToolCall:
    return ToolCall(id=call.id, function=CallFunction(name=call.name, arguments=call.arguments), index=index)


def _chat_logprobs(entries: Sequence[Entry] | None) -> ChatLogprobs | None:
    if entries is None:
        return None
    content = [
        TokenLogprob(**_item(one.spelling, one.logprob), top_logprobs=[TopLogprob(**_item(*top)) for top in one.top])
        for one in entries
    ]
    return ChatLogprobs(content=content)


def _text_logprobs(entries: Sequence[Entry] | None) -> TextLogprobs | None:
    if entries is None:
        return None
    tops = [[(one.spelling, one.logprob), *one.top] for one in entries]
    return TextLogprobs(
        tokens=[_name(one.spelling) for one in entries],
        token_logprobs=[one.logprob for one in entries],
        top_logprobs=[{_name(spelling): logprob for spelling, logprob in top} for top in tops],
        text_offset=[one.offset for one in entries],
    )


def _item(spelling: bytes, logprob: float) -> dict[str, Any]:
    return {"token": spelling.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(spelling)}


def _name(spelling: bytes) -> str:
    """The text, or for a part of a character its bytes in OpenAI's notation."""
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling)
