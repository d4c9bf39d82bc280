"""One choice of a response: the engine's tokens as text, cut at the first stop string."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol

from cloud_gateway.api.errors import internal, unavailable
from cloud_gateway.core.request import DoneEvent, Event, GenerationRequest, Usage

NEVER_OFFLOADED = ("plain", "colocated")
"""Policies that need no key's permission, since they use no worker."""


class Stream(Protocol):
    """One answer from the engine (cloud_gateway/stream.py)."""

    def __aiter__(self) -> AsyncIterator[Event]: ...

    def cancel(self) -> None:
        """Ends the answer after the round it is in; may be called twice."""


class Engine(Protocol):
    """What the API needs of the engine (cloud_gateway/engine.py)."""

    def submit(self, request: GenerationRequest) -> Stream:
        """Queues a request. Raises ClientError 400 (context_length_exceeded) or 429."""


class Detokeniser(Protocol):
    """Tokens in, the text that is certain by now out (cloud_gateway/text.py)."""

    def feed(self, token: int) -> str: ...
    def flush(self) -> str: ...


class Stops(Protocol):
    """Holds back text that may be the beginning of a stop string (cloud_gateway/text.py)."""

    def feed(self, text: str) -> str: ...
    def flush(self) -> str: ...

    stopped: bool


class Answer:
    """Iterate over `pieces()` to the end, then `finish` is set and `settle()` gives the usage."""

    def __init__(self, stream: Stream, detokeniser: Detokeniser, stops: Stops, key_reason: str | None = None) -> None:
        """`key_reason`: why the API key keeps this answer from being offloaded, for the usage."""
        self.finish: Literal["stop", "length"] | None = None
        self.failed = False
        self.first_token_at: float | None = None
        """On the clock of time.monotonic."""
        self.usage: Usage | None = None
        """Known when the engine has ended the answer."""
        self._stream, self._events = stream, aiter(stream)
        self._detokeniser, self._stops = detokeniser, stops
        self._key_reason = key_reason
        self._tokens = 0

    async def pieces(self) -> AsyncIterator[str]:
        """Text as soon as it is certain, never empty. Raises ClientError where the engine fails or shuts down."""
        async for event in self._events:
            if isinstance(event, DoneEvent):
                tail = self._end(event)
                if tail:
                    yield tail
                return
            self.first_token_at = self.first_token_at or time.monotonic()
            text = self._text(event.tokens)
            if text:
                yield text
            if self._stops.stopped:
                self.finish = "stop"
                self._stream.cancel()
                return

    def cancel(self) -> None:
        """The client left, or the response is over; idempotent."""
        self._stream.cancel()

    async def settle(self) -> Usage:
        """The usage, once all pieces are out; waits for the engine where a stop string cut the answer short."""
        if self.usage is None:
            async for event in self._events:
                if isinstance(event, DoneEvent):
                    self._take_usage(event.usage)
        if self.usage is None:
            raise internal("the engine ended an answer without saying so")
        return self.usage

    def _text(self, tokens: Sequence[int]) -> str:
        """Token by token, so that the tokens up to a stop string are counted exactly, whoever drafted them."""
        pieces = []
        for token in tokens:
            self._tokens += 1
            pieces.append(self._stops.feed(self._detokeniser.feed(token)))
            if self._stops.stopped:
                break
        return "".join(pieces)

    def _end(self, done: DoneEvent) -> str:
        self._take_usage(done.usage)
        if done.finish == "error":
            self.failed = True
            raise internal(done.error or "the engine failed without saying why")
        if done.finish == "cancelled":
            raise unavailable("The gateway is shutting down; send the request again shortly.", code="shutting_down")
        tail = self._stops.feed(self._detokeniser.flush())
        tail += self._stops.flush()
        self.finish = "stop" if self._stops.stopped else done.finish
        return tail

    def _take_usage(self, usage: Usage) -> None:
        if self._stops.stopped:
            usage.completion_tokens = self._tokens
        if self._key_reason is not None and usage.policy not in NEVER_OFFLOADED:
            usage.why_off = self._key_reason
        self.usage = usage
