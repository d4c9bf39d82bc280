"""What the API submits requests to: keys take turns, vLLM computes, and the board's figures become usage.

Everything runs on the event loop. vLLM gets no more requests at once than `target.slots`, so that a key that sends
many keeps no other one waiting.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from cloud_gateway.api.generation import ServedModel
from cloud_gateway.core.requests.accounting import FrameLedger, Stats
from cloud_gateway.core.requests.request import DoneEvent, Finish, GenerationRequest, Usage
from cloud_gateway.core.requests.router import Merit
from cloud_gateway.engine.exchange import LinkEvent, Stream, Waiting
from cloud_gateway.part import PromptBook
from edgespec.core.errors import ClientError
from edgespec_vllm.gateway import bodies
from edgespec_vllm.gateway.bodies import RefusedError, UpstreamError
from edgespec_vllm.gateway.server import Server
from edgespec_vllm.link.streams import Ledger, Streams

log = logging.getLogger("edgespec_vllm.gateway.engine")
MAX_ERROR_BYTES = 1 << 16
STOPPED = "vLLM has stopped and is started again; send the request again shortly."


class Completion:
    """One request, from its arrival to its end."""

    def __init__(self, request: GenerationRequest, tag: str, usage: Usage, frames: FrameLedger, now: float) -> None:
        self.request = request
        self.tag = tag
        self.usage = usage
        self.frames = frames
        usage.frames = frames.counts
        self.stream = Stream(lambda: None)
        self.task: asyncio.Task[None] | None = None
        self.submitted = self.began = now
        self.first_token: float | None = None
        self.workers: dict[str, str] = {}
        """Names by ids."""


class VllmEngine(Ledger):
    """The part of the gateway's own engine that API, metrics and commands use."""

    def __init__(
        self, server: Server, model: ServedModel, eos: frozenset[int], *, slots: int, queue_limit: int, drafts: bool,
        books: Sequence[PromptBook] = (),
    ) -> None:  # fmt: skip
        """`drafts`: whether vLLM verifies those of workers; `books`: of the parts."""
        self.stats = Stats()
        self._server = server
        self._model = model
        self._eos = eos
        self._slots = slots
        self._drafts = drafts
        self._books = books
        self.name = model.id
        """Of the model at vLLM."""
        self._queue: Waiting[Completion] = Waiting(queue_limit)
        self._running: dict[str, Completion] = {}
        self._ids = itertools.count(1)
        self.offloading: Streams

    @property
    def merit(self) -> Merit:
        """The measured worth of each worker, by which workers are ranked."""
        return self.offloading.merit

    @property
    def active(self) -> int:
        """Requests at vLLM."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    def post(self, event: LinkEvent) -> None:
        """What a link reports."""
        self.offloading.post(event)

    def submit(self, request: GenerationRequest) -> Stream:
        """Queues a request. Raises ClientError: 400, 429 when the queue is full, 503 while there is no vLLM."""
        bodies.check(request)
        if not self._server.up:
            raise bodies.away()

        if self._drafts:
            why_off = request.why_off
        else:
            why_off = "policy plain"
        usage = Usage(len(request.tokens), policy="vllm" if self._drafts else "plain", why_off=why_off)
        usage.verification = "rejection" if self._drafts else "shared-noise"
        one = Completion(request, str(next(self._ids)), usage, FrameLedger(self.stats.frames), time.monotonic())
        one.stream = Stream(lambda: self._left(one))
        self._queue.add(one)
        self._fill()
        return one.stream

    async def stop(self) -> None:
        """Ends every completion as cancelled."""
        for one in self._queue.all():
            self._left(one)
        tasks = [one.task for one in self._running.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _left(self, one: Completion) -> None:
        if one.task is not None:
            one.task.cancel()
        elif self._queue.remove(one):
            one.stream.push(DoneEvent("cancelled", one.usage))

    def _fill(self) -> None:
        while len(self._running) < self._slots:
            one = self._queue.take(lambda one: True)
            if one is None:
                return
            self._running[one.tag] = one
            self.stats.requests += 1
            one.task = asyncio.ensure_future(self._serve(one))

    async def _serve(self, one: Completion) -> None:
        """A task of its own; its end frees the place."""
        finish: Finish = "cancelled"
        error: str | None = None
        refusal: ClientError | None = None
        one.began = time.monotonic()
        try:
            finish = await self._generate(one)
        except asyncio.CancelledError:  # the client left, or the gateway stops
            pass
        except RefusedError as problem:
            log.warning("vLLM answered with %s", problem)
            finish = "error"
            refusal = problem.error
        except UpstreamError as problem:
            log.error("vLLM sent %s", problem)
            finish = "error"
            refusal = bodies.failed()
        except (aiohttp.ClientError, OSError, ValueError) as problem:  # it has ended
            log.warning("a completion ended with its connection to vLLM: %s", type(problem).__name__)
            error = STOPPED
        self._ended(one, DoneEvent(finish, one.usage, error, refusal))

    async def _generate(self, one: Completion) -> Finish:
        """Raises RefusedError, UpstreamError, aiohttp.ClientError."""
        request = one.request
        reason = None
        drafted = self._may_draft(request)
        sent = bodies.body(request, self._model, self.name, self._eos, drafted=drafted, tag=one.tag)
        async with self._streaming(sent) as lines:
            async for line in lines:
                found = bodies.choice_of(line, self._model.vocab_size)
                if found is None:
                    continue
                self._count(one, len(found.token_ids or ()))
                event = bodies.event_of(found, self._eos, bodies.reader_of(request))
                if event is not None:
                    one.stream.push(event)
                reason = found.finish_reason or reason

        return bodies.finish_of(reason)

    def _may_draft(self, request: GenerationRequest) -> bool:
        """Whether workers may see the request, and their drafts are verified."""
        return self._drafts and request.speculation.offload != "never" and bool(request.groups)

    @asynccontextmanager
    async def _streaming(self, body: Mapping[str, Any]) -> AsyncIterator[aiohttp.StreamReader]:
        """The lines of a stream, which ends with the block. Raises RefusedError, aiohttp.ClientError."""
        async with self._server.post("/v1/completions", body) as response:
            if response.status != 200:
                why = await response.content.read(MAX_ERROR_BYTES)
                raise bodies.refused(response.status, why, response.headers.get("Retry-After"))
            yield response.content

    def _count(self, one: Completion, tokens: int) -> None:
        if not tokens:
            return

        now = time.monotonic()
        if one.first_token is None:
            one.first_token = now
        else:
            one.usage.rounds += 1
            self.stats.rounds += 1
        one.usage.completion_tokens += tokens
        self.stats.tokens += tokens

    def _ended(self, one: Completion, done: DoneEvent) -> None:
        now = time.monotonic()
        times = one.usage.times
        del self._running[one.tag]
        self._queue.ended(one)
        first = one.first_token or now
        times.queued_s = one.began - one.submitted
        times.prefill_s = first - one.began
        times.decode_s = now - first
        times.total_s = now - one.began
        self.stats.add(one.usage)
        one.stream.push(done)
        self._fill()

    # --- from the board ----------------------------------------------------------------------------------------------

    def key(self, tag: str) -> str:
        completion = self._running.get(tag)
        if completion is not None:
            return completion.request.key
        return ""

    def assigned(self, tag: str, worker: str, name: str) -> None:
        if (one := self._running.get(tag)) is not None:
            one.usage.by_worker.setdefault(name, {"frames": 0, "fresh": 0, "verified": 0, "accepted": 0})
            for book in self._books:
                book.assigned(one.request, worker, name)
            one.workers[worker] = name

    def released(self, tag: str, worker: str, name: str, why: str, frames: int) -> None:
        one = self._running.get(tag)
        if one is None or not one.workers.pop(worker, ""):
            return
        for book in self._books:
            book.released(one.request, worker, name, why, frames)

    def frame(self, tag: str, name: str, fresh: int, *, useful: bool) -> None:
        one = self._running.get(tag)
        (self.stats.frames if one is None else one.frames).count("used" if useful else "stale")
        if one is not None:
            _add(one.usage.by_worker.get(name, {}), {"frames": 1, "fresh": fresh})

    def verified(self, tag: str, name: str, drafted: int, accepted: int) -> None:
        if (one := self._running.get(tag)) is not None:
            _add(one.usage.drafted, {"worker": drafted})
            _add(one.usage.accepted, {"worker": accepted})
            _add(one.usage.by_worker.get(name, {}), {"verified": drafted, "accepted": accepted})


def _add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count
