"""Log-probabilities in OpenAI's two shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cloud_gateway.core.verify.interface import TokenLogprob

Spell = Callable[[int], bytes]
"""The bytes of one token."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One token of a completion; `offset`: characters of the completion before the token's text."""

    spelling: bytes
    logprob: float
    top: Sequence[tuple[bytes, float]]
    offset: int


def entry(token: int, info: TokenLogprob, offset: int, spell: Spell) -> Entry:
    """The engine's log-probabilities of a token, with tokens spelled as bytes."""
    return Entry(spell(token), info.logprob, [(spell(other), logprob) for other, logprob in info.top], offset)


def chat_logprobs(entries: Sequence[Entry] | None) -> dict[str, object] | None:
    """A chat choice's `logprobs`."""
    if entries is None:
        return None
    content = [
        {**_item(one.spelling, one.logprob), "top_logprobs": [_item(*other) for other in one.top]} for one in entries
    ]
    return {"content": content, "refusal": None}


def text_logprobs(entries: Sequence[Entry] | None) -> dict[str, object] | None:
    """A text completion's `logprobs`; the token itself is among its alternatives, as in OpenAI's API."""
    if entries is None:
        return None
    return {
        "tokens": [_name(one.spelling) for one in entries],
        "token_logprobs": [one.logprob for one in entries],
        "top_logprobs": [
            {_name(one.spelling): one.logprob} | {_name(other): logprob for other, logprob in one.top}
            for one in entries
        ],
        "text_offset": [one.offset for one in entries],
    }


def _item(spelling: bytes, logprob: float) -> dict[str, object]:
    return {"token": spelling.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(spelling)}


def _name(spelling: bytes) -> str:
    """The text, or for a part of a character its bytes in OpenAI's notation."""
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling)
