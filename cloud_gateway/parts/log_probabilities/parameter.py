"""The parameters `logprobs` and `top_logprobs`, and what choices have by them in OpenAI's shapes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Struct

from cloud_gateway.api.parameters import Annotations, Field, Option, Spell
from cloud_gateway.api.schema import ChatBody, CompletionBody
from cloud_gateway.parts.log_probabilities.rows import LogprobReader, RowLogprobs
from edgespec.core.errors import refusal
from edgespec.core.protocol.ranges import Range

CHAT_TOP = Range(0, 20)
TEXT_TOP = Range(0, 5)
"""Most probable tokens that a request may ask for, as in OpenAI's API."""


class TopLogprob(Struct, forbid_unknown_fields=True):
    """One of the most probable tokens."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """One token, and the most probable ones in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Annotations, forbid_unknown_fields=True):
    """`logprobs` of a chat."""

    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(Annotations, forbid_unknown_fields=True):
    """`logprobs` of a text completion; the token itself is among its alternatives, as in OpenAI's API."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


@dataclass(frozen=True, slots=True)
class SpelledToken:
    """One token of a completion; `offset`: characters of the completion before the token's text."""

    spelling: bytes
    logprob: float
    top: Sequence[tuple[bytes, float]]
    offset: int


class LogprobAnnotator(ABC):
    """The `Annotator` of a request."""

    enlarges = 8
    """With 20 alternatives a token has 1.5 kB."""

    def __init__(self, top: int, spell: Spell) -> None:
        self.reader = LogprobReader(top)
        self._spell = spell

    def annotate(self, token: int, reading: RowLogprobs, offset: int) -> SpelledToken:
        top = [(self._spell(other), logprob) for other, logprob in reading.top]
        return SpelledToken(self._spell(token), reading.logprob, top, offset)

    @abstractmethod
    def written(self, annotations: Sequence[SpelledToken]) -> Annotations: ...


class ChatAnnotator(LogprobAnnotator):
    """The one of a chat."""

    def written(self, annotations: Sequence[SpelledToken]) -> ChatLogprobs:
        return ChatLogprobs([_chat_token(token) for token in annotations])


class TextAnnotator(LogprobAnnotator):
    """The one of a text completion."""

    def written(self, annotations: Sequence[SpelledToken]) -> TextLogprobs:
        return TextLogprobs(
            tokens=[_name(token.spelling) for token in annotations],
            token_logprobs=[token.logprob for token in annotations],
            top_logprobs=[_named(token) for token in annotations],
            text_offset=[token.offset for token in annotations],
        )


@dataclass(frozen=True, slots=True)
class Logprobs(Option):
    """The `Option` of one request."""

    top: int
    kind: type[LogprobAnnotator]

    def annotator(self, spell: Spell) -> LogprobAnnotator:
        return self.kind(self.top, spell)


class LogProbabilities:
    """The `Parameter`."""

    def fields(self, body: type[Struct]) -> Mapping[str, Field]:
        if issubclass(body, ChatBody):
            return {
                "logprobs": Field(bool, annotations=ChatLogprobs),
                "top_logprobs": Field(Annotated[int, CHAT_TOP.meta], f"a number {CHAT_TOP}"),
            }
        if issubclass(body, CompletionBody):
            return {"logprobs": Field(Annotated[int, TEXT_TOP.meta], f"a number {TEXT_TOP}", TextLogprobs)}
        return {}

    def read(self, values: Mapping[str, Any]) -> Logprobs | None:
        asked = values.get("logprobs")
        top = values.get("top_logprobs")
        if top is not None and not asked:
            raise refusal("top_logprobs", "it is only allowed together with 'logprobs': true")

        # A chat's value says whether, a text completion's how many.
        if asked is False:
            return None
        if asked is True:
            return Logprobs(top or 0, ChatAnnotator)
        return Logprobs(values["logprobs"], TextAnnotator)


def _chat_token(token: SpelledToken) -> TokenLogprob:
    top = [TopLogprob(_text(spelling), logprob, list(spelling)) for spelling, logprob in token.top]
    return TokenLogprob(_text(token.spelling), token.logprob, list(token.spelling), top)


def _text(spelling: bytes) -> str:
    return spelling.decode("utf-8", "replace")


def _named(token: SpelledToken) -> dict[str, float]:
    """The alternatives of a text completion's token by name, the token itself first."""
    return {_name(spelling): logprob for spelling, logprob in ((token.spelling, token.logprob), *token.top)}


def _name(spelling: bytes) -> str:
    """The text, or for a part of a character its bytes in OpenAI's notation."""
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling)
