"""The engine behind a vLLM that runs elsewhere: its own stream, and calls that verify drafts while these pay.

A vLLM with our scheduler verifies drafts in its steps; then this is `VllmEngine`. Any other one is asked by lists of
prompts (`rows`). A completion goes over from its stream to calls and back: what is committed is the prompt of the next
request, so that no token is lost or repeated. If a call fails the completion goes on in a stream, and if a stream is
cut it goes on in another one, as soon as there is a vLLM again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from cloud_gateway.core.requests.request import Finish, TokensEvent
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.tree import Node
from edgespec_vllm.gateway import bodies, rows
from edgespec_vllm.gateway.bodies import RefusedError, UpstreamError
from edgespec_vllm.gateway.engine import Completion, VllmEngine
from edgespec_vllm.gateway.rows import MAX_ROWS, Prices
from edgespec_vllm.link.streams import Streams
from edgespec_vllm.messages import MAX_TOKENS, Closed, FromLink, Leave, Opened, Tokens, Want

log = logging.getLogger("edgespec_vllm.gateway.remote")
RESUME_S = (0.2, 1.0, 3.0, 9.0, 20.0)
"""Pauses after a connection that was cut, before another one is made. The first one comes again after each token; after
the last one the completion ends with an error."""

BUSY = (429, 503)
"""Statuses of a server that may take the request later."""


@dataclass(eq=False)
class Progress:
    """One completion that workers may draft for."""

    completion: Completion
    number: int
    """The request's number at `Streams`."""
    stream_body: dict[str, Any]
    """The body of its stream, as it was sent first."""
    committed: list[int]
    """Prompt and completion."""
    sent: int | None = None
    """Tokens of these that `Streams` has; None while no worker drafts."""
    drafted: int = 0
    accepted: int = 0
    failed: bool = False
    """A call failed: no other one is made."""
    cuts: int = 0
    """Connections that were cut since the last token."""

    @property
    def worker(self) -> str:
        """The name of the worker that was assigned last."""
        return next(reversed(self.completion.workers.values()), "")

    @property
    def room(self) -> int:
        """Tokens that the completion may still have."""
        prompt = len(self.completion.request.tokens)
        most: int = self.stream_body["max_tokens"]
        return most - (len(self.committed) - prompt)


@dataclass(eq=False)
class Desk:
    """This process as an engine of `Streams`, which hands its requests to workers."""

    streams: Streams
    drafts: int = MAX_ROWS
    _running: dict[int, Progress] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def open(self, completion: Completion, stream_body: dict[str, Any]) -> Progress:
        """A completion begins that workers of its groups may see."""
        request = completion.request
        sampling = request.sampling
        progress = Progress(completion, next(self._numbers), stream_body, list(request.tokens))
        self._running[progress.number] = progress
        self.streams.opened(
            self,
            Opened(
                progress.number,
                sorted(request.groups),
                request.cache_scope[:32],
                sampling.temperature,
                sampling.top_k,
                sampling.top_p,
                completion.tag,
            ),
        )
        return progress

    def close(self, progress: Progress) -> None:
        """It has ended."""
        del self._running[progress.number]
        self.streams.closed(self, Closed(progress.number, progress.drafted, progress.accepted))

    def commit(self, progress: Progress, tokens: Sequence[int]) -> None:
        """vLLM has chosen these tokens."""
        progress.committed += tokens
        self._tell(progress)

    def tree(self, progress: Progress) -> CandidateTree | None:
        """The drafts of its worker after the committed tokens; None while there is no worker."""
        if progress.sent is None:
            return None
        return self.streams.tree(self, progress.number)

    def send(self, message: FromLink) -> None:
        """Called by `Streams`. Candidates are read from its tree, when they are wanted."""
        progress = self._running.get(message.request)
        if progress is None:
            return

        if isinstance(message, Want):
            progress.sent = message.have
            asyncio.get_running_loop().call_soon(self._tell, progress)
        elif isinstance(message, Leave):
            progress.sent = None

    def _tell(self, progress: Progress) -> None:
        """Gives `Streams` the tokens that it does not have."""
        while progress.sent is not None and progress.number in self._running:
            start = progress.sent
            tokens = progress.committed[start : start + MAX_TOKENS]
            if not tokens:
                return
            progress.sent = start + len(tokens)
            left = len(progress.committed) - progress.sent
            message = Tokens(progress.number, start, tokens, left, progress.drafted, progress.accepted)
            self.streams.tokens(self, message)


class RemoteEngine(VllmEngine):
    """`hooked` says whether this vLLM has our scheduler, and is connected."""

    hooked: Callable[[], bool]

    def use(self, streams: Streams, hooked: Callable[[], bool]) -> None:
        """Call it once, before the first request."""
        self.offloading = streams
        self.hooked = hooked
        self.prices = Prices()
        self._desk = Desk(streams)

    async def _generate(self, one: Completion) -> Finish:
        request = one.request
        if not self._may_draft(request) or self.hooked() or not rows.can_verify(request):
            return await super()._generate(one)

        sent = bodies.body(request, self._model, self.name, self._eos, drafted=False, tag=one.tag)
        one.usage.verification = "draws"
        sent.pop("seed", None)  # each call would draw with it again: `bodies.REFUSES` refuses one that a client sends
        progress = self._desk.open(one, sent)
        try:
            finish: Finish | None = None
            while finish is None:
                nodes = self._worth(progress, streaming=False)
                if nodes:
                    finish = await self._call(progress, nodes)
                else:
                    finish = await self._stream_again(progress)
            return finish
        finally:
            self._desk.close(progress)

    def _worth(self, progress: Progress, *, streaming: bool) -> Sequence[Node]:
        """The candidates to verify now; none if plain decoding is expected to be as fast."""
        tree = self._desk.tree(progress)
        if tree is None or progress.failed:
            return ()
        return self.prices.choose(tree, progress.worker, progress.room, streaming=streaming)

    async def _stream_again(self, progress: Progress) -> Finish | None:
        """`_stream`; one that is cut, or refused for now behind the first token, is left as if a call were worth more,
        after a pause. Raises as that does.
        """
        try:
            return await self._stream(progress)
        except RefusedError as problem:
            busy = problem.error.status in BUSY and len(progress.committed) > len(progress.completion.request.tokens)
            if not busy or progress.cuts >= len(RESUME_S):
                raise
            why = str(problem)
        except (aiohttp.ClientError, OSError) as problem:
            if progress.cuts >= len(RESUME_S):
                raise
            why = type(problem).__name__

        log.warning("a completion goes on in another stream, since one ended early: %s", why)
        await asyncio.sleep(RESUME_S[progress.cuts])
        progress.cuts += 1
        return None

    async def _stream(self, progress: Progress) -> Finish | None:
        """vLLM's own stream, until it ends or a call is worth more. Raises RefusedError, UpstreamError, ClientError."""
        body = {**progress.stream_body, "prompt": progress.committed, "max_tokens": progress.room}
        request = progress.completion.request
        done = len(progress.committed) - len(request.tokens)
        began = time.monotonic()
        latest: float | None = None
        async with self._streaming(body) as lines:
            async for line in lines:
                found = bodies.choice_of(line, self._model.vocab_size)
                if found is None:
                    continue

                now = time.monotonic()
                tokens = len(found.token_ids or ())
                if latest is not None and tokens:
                    self.prices.token.add((now - latest) / tokens)
                elif tokens and done:
                    self.prices.opening.add(now - began)
                latest = now

                event = bodies.event_of(found, self._eos, None)
                if event is not None:
                    self._take(progress, event.tokens)
                if found.finish_reason is not None:
                    return bodies.finish_of(found.finish_reason)
                if self._worth(progress, streaming=True):
                    return None
        raise UpstreamError("the stream ended early")

    async def _call(self, progress: Progress, nodes: Sequence[Node]) -> Finish | None:
        """Verifies candidates by one call. A call that fails is the last one of its completion."""
        tree = self._desk.tree(progress)
        assert tree is not None
        root = tree.root
        body = rows.call(progress.stream_body, progress.committed, nodes, root)
        hoped = rows.expected(nodes, root)
        worker = progress.worker
        began = time.monotonic()
        try:
            async with self._server.post("/v1/completions", body) as response:
                if response.status != 200:
                    raise RefusedError(response.status, bodies.failed())
                draws = rows.draws_of(await response.read(), 1 + len(nodes), self._model.vocab_size)
        except (RefusedError, UpstreamError, aiohttp.ClientError, OSError) as problem:
            log.warning("candidates are verified no more for a completion, since a call failed: %s", problem)
            progress.failed = True
            return None

        walk = rows.walked(draws, nodes, root)
        self.prices.called(worker, 1 + len(nodes), time.monotonic() - began, hoped, walk.accepted)
        progress.drafted += len(nodes)
        progress.accepted += walk.accepted
        return self._committed(progress, walk.tokens)

    def _committed(self, progress: Progress, tokens: Sequence[int]) -> Finish | None:
        """Commits what a call has drawn, as far as the completion goes."""
        ends = () if progress.completion.request.ignore_eos else self._eos
        for index, token in enumerate(tokens):
            if token in ends:
                self._take(progress, tokens[:index])
                return "stop"
        self._take(progress, tokens)
        if progress.room > 0:
            return None

        return "length"

    def _take(self, progress: Progress, tokens: Sequence[int]) -> None:
        """Gives the client tokens, and its worker."""
        if not tokens:
            return
        progress.cuts = 0
        self._count(progress.completion, len(tokens))
        progress.completion.stream.push(TokensEvent(list(tokens)))
        self._desk.commit(progress, tokens)
