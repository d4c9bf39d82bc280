"""One choice of a response: the engine's tokens as text, cut at the first stop string, with logprobs and usage."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Protocol

from cloud_gateway.api.completions import End, Entry, Finish, Piece, Spell, entry
from cloud_gateway.api.errors import internal, unavailable
from cloud_gateway.api.tools import Call, CallText
from cloud_gateway.core.policies.registry import ALONE
from cloud_gateway.core.requests.request import DoneEvent, Event, GenerationRequest, TokensEvent, Usage
from cloud_gateway.core.verify.interface import TokenLogprob


class Stream(Protocol):
    """One answer from the engine (cloud_gateway/engine/exchange.py)."""

    def __aiter__(self) -> AsyncIterator[Event]: ...

    def cancel(self) -> None:
        """Ends the completion after its current round; may be called twice."""


class Engine(Protocol):
    """The part of the engine that the API uses (cloud_gateway/engine/loop.py)."""

    def submit(self, request: GenerationRequest) -> Stream:
        """Queues a request. Raises ClientError 400 (context_length_exceeded) or 429."""


class Detokeniser(Protocol):
    """Incremental: returns text once it can no longer change (cloud_gateway/models/text.py)."""

    def feed(self, token: int) -> str: ...
    def flush(self) -> str: ...


class Stops(Protocol):
    """Holds back text that may be the beginning of a stop string (cloud_gateway/models/text.py)."""

    def feed(self, text: str) -> str: ...
    def flush(self) -> str: ...

    stopped: bool


class Answer:
    """Iterate over `pieces()` to the end, then `finish` and `calls` are set and `settle()` gives the usage."""

    def __init__(
        self,
        stream: Stream,
        detokeniser: Detokeniser,
        stops: Stops,
        key_reason: str | None = None,
        *,
        spell: Spell | None = None,
        call_text: CallText | None = None,
    ) -> None:
        """`key_reason`: why this API key is not offloaded, for the usage.

        `spell` where log-probabilities were requested, `call_text` where the model may call tools.
        """
        self.finish: Finish | None = None
        self.calls: Sequence[Call] = ()
        self.failed = False
        self.first_token_at: float | None = None
        """On the clock of time.monotonic."""
        self.usage: Usage | None = None
        """Set when the engine has ended the completion."""
        self.prompt_tokens = 0
        self._stream, self._events = stream, aiter(stream)
        self._detokeniser, self._stops = detokeniser, stops
        self._key_reason = key_reason
        self._tokens = 0
        self._spell, self._call_text = spell, call_text
        self._waiting: deque[Entry] = deque()
        """Tokens whose text has not been returned yet."""
        self._decoded = self._passed = 0
        """Characters of all tokens, and those that no stop string can remove any more."""

    async def pieces(self) -> AsyncIterator[Piece]:
        """Text once it can no longer change. Raises ClientError where the engine fails or shuts down."""
        async for event in self._events:
            if isinstance(event, DoneEvent):
                text = self._end(event)
            else:
                self.first_token_at = self.first_token_at or time.monotonic()
                text = self._text(event)
                if self._stops.stopped:
                    self.finish = "stop"
                    self._stream.cancel()
            piece = self._piece(text)
            if piece.text or piece.logprobs:
                yield piece
            if self.finish is not None:
                return

    @property
    def has_logprobs(self) -> bool:
        """Whether log-probabilities were requested."""
        return self._spell is not None

    @property
    def end(self) -> End:
        """After the last piece."""
        return End(self.finish, self.calls)

    @property
    def tokens(self) -> int:
        """Tokens of the completion so far."""
        return self.usage.completion_tokens if self.usage is not None else self._tokens

    @property
    def used_tokens(self) -> int:
        """Tokens of the prompt and of the completion so far, for the API key's limits."""
        return self.prompt_tokens + self.tokens

    def cancel(self) -> None:
        """The client left, or the response is over; idempotent."""
        self._stream.cancel()

    async def settle(self) -> Usage:
        """The usage, after all pieces; waits for the engine where a stop string ended the text early."""
        if self.usage is None:
            async for event in self._events:
                if isinstance(event, DoneEvent):
                    self._take_usage(event.usage)
        if self.usage is None:
            raise internal("the engine ended a completion without a final event")
        return self.usage

    def _text(self, event: TokensEvent) -> str:
        """Token by token, so that the tokens up to a stop string are counted exactly in every size of a round."""
        pieces = []
        infos: Sequence[TokenLogprob | None] = event.logprobs or [None] * len(event.tokens)
        for token, info in zip(event.tokens, infos):
            self._tokens += 1
            if self._spell is not None and info is not None:
                self._waiting.append(entry(token, info, self._decoded, self._spell))
            text = self._detokeniser.feed(token)
            self._decoded += len(text)
            pieces.append(self._stops.feed(text))
            if self._stops.stopped:
                break
        return "".join(pieces)

    def _piece(self, text: str) -> Piece:
        """The piece to return for text that has passed the stop strings."""
        self._passed += len(text)
        ended = self.finish is not None
        entries = None if self._spell is None else self._entries(whole=ended and not self._stops.stopped)
        if self._call_text is not None:
            text = self._call_text.feed(text)
            if ended:
                rest, self.calls = self._call_text.end(cut=self.finish == "length")
                text += rest
                if self.calls and self.finish == "stop":
                    self.finish = "tool_calls"
        return Piece(text, entries)

    def _entries(self, *, whole: bool) -> list[Entry]:
        entries = []
        while self._waiting and (whole or self._waiting[0].offset < self._passed):
            entries.append(self._waiting.popleft())
        return entries

    def _end(self, done: DoneEvent) -> str:
        self._take_usage(done.usage)
        if done.finish == "error":
            self.failed = True
            if done.refusal is not None:
                raise done.refusal
            raise internal(done.error or "the engine failed without a reason")
        if done.finish == "cancelled" and done.error:
            raise unavailable(done.error, code="engine_stopped")
        if done.finish == "cancelled":
            raise unavailable("The gateway is shutting down; send the request again shortly.", code="shutting_down")
        tail = self._stops.feed(self._detokeniser.flush())
        tail += self._stops.flush()
        self.finish = "stop" if self._stops.stopped else done.finish
        return tail

    def _take_usage(self, usage: Usage) -> None:
        stopped, barred = self._stops.stopped, self._key_reason is not None and usage.policy not in ALONE
        self.usage = replace(
            usage,
            completion_tokens=self._tokens if stopped else usage.completion_tokens,
            why_off=self._key_reason if barred else usage.why_off,
        )
