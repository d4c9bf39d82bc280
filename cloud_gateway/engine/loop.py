"""Engine loop: receive, schedule, run, settle (`Engine.turn`). One thread owns the models.

The event loop hands work over through `_inbox` and gets results back through `call_soon_threadsafe`; it never waits
for a model, and the engine never waits for the network.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from cloud_gateway.core.limits.prompts import ReadingPace
from cloud_gateway.core.limits.rooms import RoomsMaker, WholeRooms
from cloud_gateway.core.limits.shared_passes import Hold
from cloud_gateway.core.policies import registry
from cloud_gateway.core.policies.estimators import UNKNOWN_STEP_S, StepCurve
from cloud_gateway.core.policies.policy import Kind, Learnt, Memory, Policy, kind_of
from cloud_gateway.core.policies.registry import POLICIES, Policies
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests.accounting import Stats, Submission
from cloud_gateway.core.requests.events import (
    Ended,
    Finished,
    FrameArrived,
    Listener,
    Spent,
)
from cloud_gateway.core.requests.generation import Bounds, Generation
from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest
from cloud_gateway.core.requests.router import Merit
from cloud_gateway.core.sources.asking import MAKERS, make_sources
from cloud_gateway.core.sources.interface import SourceMakers
from cloud_gateway.core.verify.verification import (
    BUILT_IN,
    CompletionStart,
    Method,
    at_least,
    method_of,
    worker_sampling_of,
)
from cloud_gateway.engine.decisions import Deciding, Decisions
from cloud_gateway.engine.exchange import (
    Active,
    ClientLeft,
    Declined,
    InboxEvent,
    Listeners,
    Outbox,
    PolicyStart,
    Recording,
    Stream,
    Waiting,
    WorkerGone,
    WorkerReady,
)
from cloud_gateway.engine.local_draft import LocalDrafting
from cloud_gateway.engine.pool import WorkerPool, Workers
from cloud_gateway.engine.prefill import PREFILL_MS, Prefill
from cloud_gateway.engine.queue_work import Lent, MakeQueueWork, no_queue_work
from cloud_gateway.engine.requests import Requests
from cloud_gateway.engine.slots import Slots
from cloud_gateway.models.drafts import DraftModel
from cloud_gateway.models.settings import PREFILL_CHUNK
from cloud_gateway.models.target_model import Target
from edgespec.core.errors import ClientError
from edgespec.shared.contained import Contained, describe_fault

log = logging.getLogger("cloud_gateway.engine.loop")

HANDOVER_S = 0.001
"""Longest wait for the event loop to write a round's commits, before the models compute again. Where both threads share
a core, the event loop would otherwise get it in the middle of the next pass; on its own core it takes 0.1 ms."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the operator chose (configs/gateway.toml, [policy], [target] and [api])."""

    policy: PolicySettings
    queue_limit: int
    prefill_chunk: int = PREFILL_CHUNK
    prefill_ms: float = PREFILL_MS
    methods: Mapping[str, Method] = field(default_factory=lambda: BUILT_IN)
    """Methods of verification, by the names that the policy table and requests give them."""
    policies: Policies = field(default_factory=lambda: POLICIES)
    makers: SourceMakers = field(default_factory=lambda: MAKERS)
    """Of sources of candidates, likewise."""
    make_rooms: RoomsMaker = WholeRooms
    """Decides which requests have room in the KV cache."""


class _TurnClock:
    """Time of one turn that the models do not take."""

    def __init__(self, stats: Stats, clock: Callable[[], float]) -> None:
        self._stats = stats
        self._clock = clock
        self._began = clock()
        self._models_before_s = stats.target_s + stats.draft_s

    def host_s(self) -> float:
        """Seconds since the turn began, without passes of target and draft."""
        models_s = self._stats.target_s + self._stats.draft_s - self._models_before_s
        return self._clock() - self._began - models_s


class Engine:
    """Runs requests over a target, an optional local draft and whatever workers are linked."""

    def __init__(
        self,
        target: Target,
        local: DraftModel | None,
        settings: EngineSettings,
        workers: Workers | None = None,
        clock: Callable[[], float] = time.perf_counter,
        recorders: Sequence[Recording] = (),
        curve: Mapping[int, float] | None = None,
        on_failure: Callable[[], None] = lambda: None,
        on_idle: Callable[[], None] = lambda: None,
        queue_work: MakeQueueWork = no_queue_work,
    ) -> None:
        """`curve`: seconds of a target pass by its rows, as measured before (process/loading.py). `on_failure` is
        called on the event loop when the engine gave up: the target fails for every request (requests.py). `on_idle` is
        called on the engine's thread at least every IDLE_S while no request is in a slot or waits for one.
        `queue_work`: makes what serves requests that wait.
        """
        self.target = target
        self.settings = settings
        self.clock = clock
        self.recorders = recorders
        self.on_failure = on_failure
        self.on_idle = on_idle
        self._verify_s = StepCurve(curve or {1: UNKNOWN_STEP_S}, provisional=curve is None)
        self._memory = Memory()
        self._ids = itertools.count(1)
        self._inbox: deque[tuple[InboxEvent, float]] = deque()
        self._outbox = Outbox()

        stats = Stats()
        self.pool = WorkerPool(workers or Workers(), self._outbox.add)
        lent = Lent(self.pool, local, self._verify_s, clock, stats, frozenset(target.eos))
        self._queue_work = queue_work(lent)
        self.requests = Requests(
            target,
            local,
            self._verify_s,
            clock,
            stats,
            self.pool,
            workers_per_request=settings.policy.workers_per_request,
            on_worker_needed=self._queue_work.worker_needed,
            post=self._outbox.add,
            finish=self._finish,
        )
        self.offloading = self.requests.offloading

        pace = ReadingPace(settings.prefill_chunk, settings.prefill_ms / 1000)
        self.prefill = Prefill(self.requests, pace)
        queue = Waiting[Active](settings.queue_limit)
        rows = 1 + settings.policy.verify_nodes
        self.slots = Slots(self.requests, queue, self._queue_work, pace, rows=rows, make_rooms=settings.make_rooms)
        self.deciding = Deciding(self.requests, self.prefill, settings.policy.verify_nodes)
        self._hold = Hold()

        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # --- called on the event loop --------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread; call on the event loop that will receive the answers."""
        self.use_loop(asyncio.get_running_loop())
        self._thread.start()

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Where answers and messages go; `start` calls it, and callers that step the engine manually."""
        self._outbox.loop = loop

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ends every answer as cancelled and waits for the thread."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout_s)

    @property
    def local(self) -> LocalDrafting:
        """The gateway's own draft."""
        return self.requests.local

    @property
    def merit(self) -> Merit:
        """The measured worth of each worker, by which workers are ranked."""
        return self.pool.merit

    @property
    def stats(self) -> Stats:
        """Totals since the start."""
        return self.requests.stats

    @property
    def active(self) -> int:
        """Requests in slots."""
        return len(self.requests.active)

    @property
    def queued(self) -> int:
        """Requests that wait for a slot."""
        return len(self.slots.queue)

    def submit(self, request: GenerationRequest) -> Stream:
        """Queues a request. Raises ClientError: 400 for one that can never fit, 429 when the queue is full."""
        active = self._make_active(request)
        longest = active.room.longest
        if longest > self.target.kv_tokens:
            raise ClientError(
                f"Prompt, completion and candidates may take {longest} tokens of KV cache, and this gateway has "
                f"{self.target.kv_tokens}; shorten the prompt or lower 'max_tokens'.",
                param="max_tokens",
                code="context_length_exceeded",
            )

        self.slots.queue.add(active)
        self._wake.set()
        return active.stream

    def post(self, event: InboxEvent) -> None:
        """Queues an event for the next turn, with the present time; may be called on any thread."""
        self._inbox.append((event, self.clock()))
        if not self._wake.is_set():  # if it is, a turn is still to come that takes this in
            self._wake.set()

    def _make_active(self, request: GenerationRequest) -> Active:
        settings = request.speculation.over(self.settings.policy)
        learnt = self._recall(request, settings)
        policy = registry.make(settings, learnt, self.settings.policies)
        generation = self._generation(request, settings, policy, learnt)

        stream = Stream(lambda: self.post(ClientLeft(active)))
        room = self.slots.room(generation)
        active = Active(generation, stream, room)
        return active

    def _recall(self, request: GenerationRequest, settings: PolicySettings) -> Learnt | None:
        """What the policy of an earlier request of this kind learnt, with a worker that may draft for this one."""
        workers = self.pool.linked().values()
        allowed = [worker.label for worker in workers if worker.groups & request.groups]
        return self._memory.recall(allowed, _kind(request, settings))

    def _listen(self, generation: Generation, start: PolicyStart) -> Listener | None:
        """What records the request besides its account; None if nothing does."""
        listeners: list[Listener] = []
        for recorder in self.recorders:
            listener = recorder.listener(generation, start)
            if listener is not None:
                listeners.append(listener)
        if not listeners:
            return None

        return Listeners(listeners)

    def _generation(
        self,
        request: GenerationRequest,
        settings: PolicySettings,
        policy: Policy,
        learnt: Learnt | None,
    ) -> Generation:
        """The request's machine."""
        why_off = request.why_off
        if why_off is None and not policy.asks_workers:
            why_off = f"policy {policy.name}"

        method = method_of(request.sampling, self.settings.methods[settings.verification])
        start = CompletionStart(
            request.sampling,
            request.tokens,
            request.constraint,
            self.local.spread,
            np.random.default_rng,
        )
        verification = at_least(request.min_tokens, self.target.eos, method.begin(start))

        sources = make_sources(
            policy,
            settings,
            request.tokens,
            learnt,
            request.brought,
            request.cache_scope,
            self.settings.makers,
        )

        policy_start = PolicyStart(settings, self._verify_s, learnt)
        return Generation(
            next(self._ids),
            request,
            policy,
            verification,
            Bounds(self.target.context, self.target.eos, settings.verify_nodes),
            Submission(self.clock(), method.name, why_off, self.stats.frames),
            offload=why_off is None,
            worker_sampling=worker_sampling_of(request.sampling, method),
            sources=sources,
            listen=partial(self._listen, start=policy_start),
        )

    # --- the engine's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping and not self.requests.target_broken:
            with Contained() as caught:
                self._serve()
            if caught.error is not None:  # what no request caused must not end the gateway either
                self.requests.turn_failed(list(self.requests.active.values()), caught.error)

        for active in [*self.requests.active.values(), *self.slots.queue.all()]:
            self.requests.step(active, Ended("stopped"))
        if self.requests.target_broken:
            self._outbox.add(self.on_failure)
        self._flush()

    def _serve(self) -> None:
        while not self._stopping and not self.requests.target_broken:
            wake = self.turn()
            if wake is not None:
                if not self.requests.active and not self.queued:
                    self.on_idle()
                self._wait(wake)

    def turn(self) -> float | None:  # main loop
        """One turn of the loop: receive, schedule, run, settle.

        Returns when to wake, or None if there may be more to do at once.
        """
        clock = _TurnClock(self.stats, self.clock)

        # Receive: what links, workers and clients have sent.
        self._receive()

        # Schedule: who has a slot, and a worker. Workers are sent what they need before the target computes.
        self.slots.turn()
        self.requests.step_all(self.offloading.share())
        waiting = self.slots.queue.all()
        self._queue_work.lead(waiting, self.offloading.idle)
        self._flush()

        # Run: drafts, then a pass of the target for those that are ready.
        decisions = self.deciding.decide(self.clock(), self._wake.set)
        self.local.run(decisions.drafts)
        verified = self._verify(decisions)

        # Settle: tokens go out, then comes what can wait for that: work on the queue, and a chunk of a prompt.
        self._send(verified)
        computed = bool(verified or decisions.drafts)
        wake = min(decisions.wake, self._queue_work.compute(waiting))
        pause = self.prefill.turn(idle=not computed, wake=wake)
        if not computed and pause is not None:
            return pause

        self._charge(verified, clock.host_s())
        return None

    def _verify(self, decisions: Decisions) -> Sequence[Active]:
        """One pass of the target for the requests that are ready, unless they wait for those that draft; returns those
        that were verified."""
        ready = len(decisions.verifies)
        plain_s = self._verify_s(1)
        if self._hold.holds(ready, decisions.drafting, self.clock(), plain_s) or not ready:
            return ()

        self.requests.verify(decisions.verifies)
        self.prefill.round_ended()
        return [active for active, _ in decisions.verifies]

    def _send(self, verified: Sequence[Active]) -> None:
        """Hands over the tokens and commits of a round, and gives the event loop the time to write the commits."""
        has_workers = any(active.generation.assignment is not None for active in verified)
        self._flush(handover=has_workers)

    def _charge(self, verified: Sequence[Active], host_s: float) -> None:
        """Books the time of a turn outside the models, shared evenly by the requests of its round."""
        self.stats.host_s += host_s
        for active in verified:
            active.generation.note(Spent("host", host_s / len(verified)), self.clock())

    def _receive(self) -> None:
        """Takes in the events that were posted. One that fails is lost, and the others are not."""
        while self._inbox:
            with Contained() as caught:
                while self._inbox:
                    event, at = self._inbox.popleft()
                    self._take_in(event, at)

            if caught.error is not None:
                self.stats.faults += 1
                log.error(
                    "a %s was lost: %s",
                    type(event).__name__,
                    describe_fault(caught.error),
                )

    def _take_in(self, event: InboxEvent, at: float) -> None:
        match event:
            case FrameArrived():
                self._frame_arrived(event, at)
            case WorkerReady():
                self.requests.step_all(self.offloading.worker_ready())
            case WorkerGone():
                self.requests.step_all(self.offloading.worker_gone(event))
            case Declined():
                self.requests.step_all(self.offloading.declined(event))
                self._queue_work.declined(event)
            case ClientLeft(active):  # one that runs stops after its round
                self.slots.queue.remove(active)
                self.requests.step(active, Ended("left"))

    def _frame_arrived(self, event: FrameArrived, at: float) -> None:
        """Hands a frame to its request in a slot, or to the work on those that wait."""
        if self.requests.frame_arrived(event, at):
            return

        taken = self._queue_work.frame_arrived(event)
        if taken is None:
            self.stats.frames.count("stale")  # its request is over
        else:
            self.requests.frame_taken(taken, event.frame.request)

    def _finish(self, active: Active, finished: Finished) -> None:
        """Frees everything that the request holds and ends the client's stream."""
        if active.id in self.requests.active:
            self.slots.ended(active)
            self.requests.close_slot(active)
            self.local.close(active)
        else:
            self.slots.left(active)

        generation = active.generation
        self._remember(generation)
        self._queue_work.left(active, "cancelled")
        self.stats.add(generation.usage)
        if generation.policy.asks_workers:
            self.pool.pace_alone.add(generation.assignments.span_alone)

        done = DoneEvent(finished.finish, generation.usage, finished.error, finished.refusal)
        self._outbox.add(lambda: active.stream.push(done))

    def _remember(self, generation: Generation) -> None:
        """Keeps what the request's policy and sources learnt for the next one of its kind."""
        learnt = dict(generation.policy.state() or {})
        if generation.sources is not None:
            learnt.update(generation.sources.state())

        if not learnt or not generation.usage.completion_tokens:
            return

        last_worker = next(reversed(generation.usage.by_worker), "")
        settings = generation.request.speculation.over(self.settings.policy)
        kind = _kind(generation.request, settings)
        self._memory.keep(last_worker, kind, learnt)

    def _wait(self, until: float) -> None:
        began = self.clock()
        self._wake.wait(max(until - began, 0.0))
        self._wake.clear()

        self.stats.waited_s += self.clock() - began

    def _flush(self, *, handover: bool = False) -> None:
        """Hands everything of this turn over, commits before tokens in the order made; `handover`: gives the event loop
        the time to write them."""
        wait_s = 0.0
        if handover and threading.current_thread() is self._thread:
            wait_s = HANDOVER_S
        self._outbox.flush(self.pool.outgoing(), wait_s)


def _kind(request: GenerationRequest, settings: PolicySettings) -> Kind:
    """What a request has in common with those that its policy learns from."""
    brought = [source.name for source in request.brought]
    return kind_of(settings.name, request.sampling.temperature, [*settings.sources, *brought])
