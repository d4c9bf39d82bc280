"""One streamed chat completion as it arrives: pure, from bytes and times to the survey's figures.

Server-sent events of WHATWG HTML, section 9.2, with OpenAI's `chat.completion.chunk` objects. Texts are only checked
for being empty, and not stored.
"""

from __future__ import annotations

from typing import Any

import msgspec

from edgespec.core.errors import UNDECODABLE

MAX_BYTES = 1 << 20
"""No completion of a tiny prompt is longer."""
TEXTS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls")
"""Parts of a delta that contain tokens; servers differ in the field of a model's reasoning."""


class NotAStreamError(Exception):
    """The response is no OpenAI stream; `answered_error` where the stream reports an error."""

    def __init__(self, *, answered_error: bool = False) -> None:
        super().__init__("an error in the stream" if answered_error else "no OpenAI stream")
        self.answered_error = answered_error


class Answer:
    """Extended by `feed`. Times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self.first_at: float | None = None
        """When the first token arrived."""
        self.last_at: float | None = None
        self.chunks = 0
        """Pieces of text; a piece is a token with most servers, and more with some."""
        self.tokens: int | None = None
        """Completion tokens, where the server reports its usage."""
        self.finished = False
        """Whether a finish reason was received."""
        self.done = False
        """Whether OpenAI's end mark was received."""
        self._bytes = 0
        self._line = bytearray()
        self._data: list[bytes] = []

    def feed(self, data: bytes, now: float) -> None:
        """Bytes that arrived at `now`. Raises NotAStreamError."""
        self._bytes += len(data)
        if self._bytes > MAX_BYTES:
            raise NotAStreamError

        *lines, rest = (bytes(self._line) + data).split(b"\n")
        self._line[:] = rest
        for line in lines:
            self._take(line.removesuffix(b"\r"), now)

    def _take(self, line: bytes, now: float) -> None:
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif not line and self._data:
            event = b"\n".join(self._data)
            self._data.clear()
            self._event(event, now)

    def _event(self, event: bytes, now: float) -> None:
        if event.strip() == b"[DONE]":
            self.done = True
            return

        try:
            chunk: Any = msgspec.json.decode(event)
        except UNDECODABLE:
            raise NotAStreamError from None
        if not isinstance(chunk, dict):
            raise NotAStreamError
        if chunk.get("error"):
            raise NotAStreamError(answered_error=True)

        choices = chunk.get("choices")
        if not isinstance(choices, list) or not all(isinstance(one, dict) for one in choices):
            raise NotAStreamError

        for choice in choices:
            self.finished |= bool(choice.get("finish_reason"))
            delta = choice.get("delta")
            if isinstance(delta, dict) and any(delta.get(name) for name in TEXTS):
                self.chunks += 1
                self.first_at = now if self.first_at is None else self.first_at
                self.last_at = now
        self._count(chunk.get("usage"))

    def _count(self, usage: object) -> None:
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if isinstance(tokens, int) and not isinstance(tokens, bool) and 0 <= tokens < 1 << 31:
            self.tokens = tokens
