"""The server's own stream of one completion, which goes on while the gateway does something else.

What is committed is known here, so a stream that is cut goes on in another one at the same place: no token is lost or
repeated. That does not hold if a request has penalties that count the tokens of the completion: in another stream these
would be prompt. Such a completion ends with an error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cloud_gateway.parts.http_engine.dialects import Drawn, GarbledError, Question
from cloud_gateway.parts.http_engine.server import BUSY, FRESH_S, PARTIAL, RefusedError, Server, away, cancelled, failed
from edgespec.core.errors import ClientError
from edgespec.shared.contained import Contained, describe_fault

log = logging.getLogger("cloud_gateway.parts.http_engine")
RESUME_S = (0.2, 1.0, 3.0, 9.0, 20.0)
"""Pauses after a stream that was cut, before another one is opened. The first one comes again after each token; after
the last one the completion ends with an error."""


@dataclass(frozen=True, slots=True)
class ServerTokens:
    """What the gateway knows of the server's tokens."""

    vocab_size: int
    ends: frozenset[int]
    """Tokens that end a completion."""

    def completed(self, drawn: Drawn) -> Sequence[int]:
        """The tokens of a response, with one that ends the text if it ended. Raises GarbledError."""
        tokens = list(drawn.tokens)
        if not all(0 <= token < self.vocab_size for token in tokens):
            raise GarbledError("a token outside the vocabulary")

        # Servers may leave out the token that ended the text, or end it at one that only they know.
        if drawn.stop and self.ends and (not tokens or tokens[-1] not in self.ends):
            tokens.append(min(self.ends))
        return tokens


@dataclass(frozen=True, slots=True)
class StreamStart:
    """What one stream is to bring."""

    question: Question
    prompt: Sequence[int]
    """Prompt and completion so far."""
    tokens: int
    """At most so many more."""
    begun: bool
    """The client has tokens of the completion already."""
    resumable: bool


class TokenStream:
    """Reads on its server's event loop. `tokens`, `gaps_s`, `ended` and `error` may be read on any thread."""

    def __init__(self, server: Server, model: ServerTokens, begins: StreamStart, wake: Callable[[], None]) -> None:
        """Call it on the event loop. `wake` is called after each change."""
        self.begins = begins
        self.start = len(begins.prompt)
        """The position of its first token."""
        self.tokens: list[int] = []
        self.gaps_s: list[float | None] = []
        """Seconds between each token and the one before; None for the first one of a connection."""
        self.opening_s: float | None = None
        """Seconds until the first token."""
        self.ended = False
        """Nothing more comes: the text is over, or `error` says why."""
        self.error: ClientError | None = None
        self._server = server
        self._model = model
        self._wake = wake
        self._changed = asyncio.Event()
        self._task = asyncio.ensure_future(self._serve())

    def follows(self, committed: Sequence[int]) -> bool:
        """Whether its tokens continue these: nothing else was chosen since it was opened."""
        chosen = committed[self.start :]
        return len(committed) >= self.start and list(chosen) == self.tokens[: len(chosen)]

    def has(self, position: int) -> bool:
        """Whether the token at a position has come, or nothing more comes."""
        return self.ended or position - self.start < len(self.tokens)

    async def wait(self, position: int) -> None:
        """Until it `has` this position."""
        while not self.has(position):
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Ends its request at the server."""
        await cancelled(self._task)

    async def _serve(self) -> None:
        with Contained(self._broken):
            await self._run()

    def _broken(self, error: Exception) -> None:
        log.error("a stream failed: %s", describe_fault(error))
        self._end(failed())

    async def _run(self) -> None:
        pauses = iter(RESUME_S)
        while True:
            before = len(self.tokens)
            error: ClientError | None = None
            try:
                if await self._read():
                    self._end(None)
                    return
                why = "it ended early"
            except RefusedError as problem:
                why = str(problem)
                error = problem.error
                if problem.status not in BUSY or not self._begun:
                    log.warning("a completion ends, since the server answers with %s", why)
                    self._end(error)
                    return
            except GarbledError as problem:
                log.error("a completion ends, since the server sent %s", problem)
                self._end(failed())
                return
            except PARTIAL as problem:
                why = type(problem).__name__
                if not self._begun:
                    log.warning("a completion ends, since the server does not answer: %s", why)
                    self._end(away())
                    return

            self._server.doubt()
            if len(self.tokens) > before:
                pauses = iter(RESUME_S)
            pause_s = next(pauses, None)
            if pause_s is None or not self.begins.resumable:
                log.warning("a completion ends with its stream: %s", why)
                self._end(error or away())
                return
            log.warning("a completion goes on in another stream, since one ended early: %s", why)
            await asyncio.sleep(pause_s)

    @property
    def _begun(self) -> bool:
        return self.begins.begun or bool(self.tokens)

    async def _read(self) -> bool:
        """One connection; whether it ended with the text. Raises as `Server.events`."""
        # A completion that has begun goes on at the same server only, which a call may just have found out. For the
        # first token of another one, whether it is the same is found out beside the stream, before that token counts.
        fresh_s = 0.0
        if self._begun:
            fresh_s = FRESH_S
        same = asyncio.ensure_future(self._server.same(fresh_s))
        try:
            if self._begun:
                await same
            return await self._events(same)
        finally:
            await cancelled(same)

    async def _events(self, same: asyncio.Task[None]) -> bool:
        begins = self.begins
        began = time.monotonic()
        latest: float | None = None
        prompt = [*begins.prompt, *self.tokens]
        async for drawn in self._server.events(begins.question, prompt, begins.tokens - len(self.tokens)):
            await same
            now = time.monotonic()
            tokens = self._model.completed(drawn)
            gap_s = None
            if latest is not None and tokens:
                gap_s = (now - latest) / len(tokens)
            elif tokens:
                self.opening_s = now - began

            if tokens:
                latest = now
                self.gaps_s += [gap_s] * len(tokens)
                self.tokens += tokens
                self._notify()
            if drawn.stop or drawn.length:
                return True

        return False

    def _end(self, error: ClientError | None) -> None:
        self.error = error
        self.ended = True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._wake()
