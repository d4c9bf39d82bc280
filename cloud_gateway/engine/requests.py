"""The one driver of the requests: hands events to their state machines, carries out what follows, and contains faults.

An exception in one request never reaches another. A fault in what a request does by itself (merging frames, deciding,
choosing tokens) touches that request alone. Where only speculation failed, the request goes on by plain decoding; where
its tokens cannot be chosen, it ends with an error. A worker whose data was being handled loses its link. Only a failed
pass of the target touches several requests: they are retried one at a time, by plain decoding in fresh slots, so that
the one that makes passes fail ends alone.

Every event goes through `step`. One that follows from an effect, as a worker's assignment does, waits until all effects
of the present event were carried out: no step runs inside a step. Calling the machine at once was tried first; a
request's state then changed under the effect that had asked for it.

A retry changes no token: what was emitted stays, and nothing of a failed pass was. A method of verification without a
seed keeps its draws for tokens that are not chosen yet, so that each is still drawn once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.policies.policy import Verify
from cloud_gateway.core.requests.accounting import Stats
from cloud_gateway.core.requests.events import (
    Admitted,
    Chosen,
    Drop,
    Effect,
    Ended,
    Event,
    Failed,
    Finished,
    FrameArrived,
    FrameTaken,
    Released,
    Send,
    Verified,
    WorkerWanted,
)
from cloud_gateway.core.requests.generation import MAX_RETRIES
from cloud_gateway.engine.exchange import Active, WorkerGone
from cloud_gateway.engine.local_draft import LocalDrafting
from cloud_gateway.engine.offloading import Changes, Offloading, WorkerNeeded
from cloud_gateway.engine.pool import WorkerPool
from cloud_gateway.models.drafts import DraftModel
from cloud_gateway.models.target_model import Target, Work
from cloud_gateway.models.target_model.inside import DrawingTarget
from edgespec.core.drafting.tree import Node
from edgespec.core.errors import RemoteProtocolError
from edgespec.shared.contained import Contained, describe_fault

log = logging.getLogger("cloud_gateway.engine.loop")

MAX_FAILURES = 5
"""Different requests whose passes fail, without a good pass between, before the target counts as broken."""
WORKER_DATA = frozenset({"merging a frame", "deciding", "laying out its tree"})
"""Stages that handle what the request's worker sent."""


class Step(NamedTuple):
    """One event that a request is to take in."""

    active: Active
    event: Event
    now: float
    """When it happened, in seconds of the engine's clock."""
    stage: str
    """What the gateway does meanwhile, for the log and the client if it fails."""
    fatal: bool
    """Whether the request cannot go on if it fails."""
    recovers: bool
    """Whether it follows from a fault: if it fails too, the request ends at once, so that recovery cannot recurse."""


class Requests:
    """The requests in slots, and the one place where they take in events. Lives on the engine's thread."""

    def __init__(
        self,
        target: Target,
        draft: DraftModel | None,
        verify_s: StepCurve,
        clock: Callable[[], float],
        stats: Stats,
        pool: WorkerPool,
        *,
        workers_per_request: int,
        on_worker_needed: WorkerNeeded,
        post: Callable[[Callable[[], None]], None],
        finish: Callable[[Active, Finished], None],
    ) -> None:
        """`post` hands a call to the event loop, in order; `finish` frees what a request holds that is over, and ends
        its stream."""
        self.target = target
        self._drawing = target if isinstance(target, DrawingTarget) else None
        self.clock = clock
        self.stats = stats
        self.local = LocalDrafting(draft, verify_s, self.stats, clock, self.step)
        self.active: dict[int, Active] = {}
        """Requests in slots."""
        self.offloading = Offloading(pool, self.active, workers_per_request, on_worker_needed)
        self._pool = pool
        self._post = post
        self._finish = finish
        self._waiting: deque[Step] = deque()
        self._stepping = False
        self._failed: set[int] = set()
        self._unexplained = 0

    @property
    def target_broken(self) -> bool:
        """Whether so many different requests failed, without a good pass between, that the process should end."""
        return max(len(self._failed), self._unexplained) >= MAX_FAILURES

    def ready(self, active: Active, wake: Callable[[], None]) -> bool:
        """Whether a pass can bring the request a token; if not, `wake` is called once it can, on any thread."""
        constraint = active.request.constraint
        if constraint is not None and not constraint.ready((), wake):
            return False
        return self._drawing is None or self._drawing.ready(active.slot, wake)

    def isolated(
        self,
        active: Active,
        stage: str,
        *,
        fatal: bool = False,
        worker: str | None = None,
    ) -> Contained:
        """A context that keeps any exception of this stage to this request; `fatal`: it cannot go on; `worker`: whose
        message is handled."""
        return Contained(self._fault, active, stage, fatal, worker)

    # --- events and effects --------------------------------------------------------------------------------------

    def step(
        self,
        active: Active,
        event: Event,
        stage: str = "",
        *,
        fatal: bool = False,
        now: float | None = None,
    ) -> None:
        """Hands the request an event and carries out what follows; within another step, after that one. A fault stays
        with the request (`isolated`). `now`: when it happened, if that is not the present."""
        if not stage:
            stage = f"handling {type(event).__name__}"
        if now is None:
            now = self.clock()
        self._take(Step(active, event, now, stage, fatal, recovers=False))

    def step_all(self, changes: Changes) -> None:
        """Hands requests what offloading decides, each before the next is decided."""
        for change in changes:
            self.step(change.active, change.event)

    def punish(self, worker: str, error: RemoteProtocolError, request: int) -> None:
        """Ends the link of a worker that broke the protocol, or the gateway's own code, and takes its requests away."""
        self._pool.punish(worker, error, request)
        self.step_all(self.offloading.worker_gone(WorkerGone(worker)))

    def frame_taken(self, taken: FrameTaken, request: int) -> None:
        """Carries out what follows from a frame. `request`: its number on the wire."""
        self._pool.report_unknown_prefix(taken)
        if taken.error is not None:
            self.punish(taken.worker, taken.error, request)

    def _recover(self, active: Active, event: Event) -> None:
        """Hands the request what follows from a fault."""
        self._take(Step(active, event, self.clock(), "recovering", fatal=True, recovers=True))

    def _take(self, step: Step) -> None:
        self._waiting.append(step)
        if self._stepping:
            return

        self._stepping = True
        try:
            while self._waiting:
                self._run(self._waiting.popleft())
        finally:
            self._stepping = False

    def _run(self, step: Step) -> None:
        """Has the request take in the event, and carries out what follows."""
        active = step.active
        effects: Sequence[Effect] = ()
        with self._containing(step):
            effects = active.generation.handle(step.event, step.now)

        for effect in effects:
            if isinstance(effect, FrameTaken) and effect.error is None and not effect.unknown_prefix:
                continue  # the most frequent one
            with self.isolated(active, "carrying out a step"):
                self._apply(active, effect)

    def _containing(self, step: Step) -> Contained:
        """A context that keeps a fault of this step to its request."""
        if step.recovers:
            return Contained(self._not_recovered, step.active)

        worker = None
        if isinstance(step.event, FrameArrived):
            worker = step.event.worker
        return self.isolated(step.active, step.stage, fatal=step.fatal, worker=worker)

    def frame_arrived(self, event: FrameArrived, at: float) -> bool:
        """Hands a frame to its request; whether that has a slot."""
        active = self.active.get(event.frame.request)
        if active is not None:
            self.step(active, event, "merging a frame", now=at)
        return active is not None

    def _apply(self, active: Active, effect: Effect) -> None:
        match effect:
            case FrameTaken():
                self.frame_taken(effect, active.id)
            case Send():
                self._pool.send(effect)
            case Chosen():
                self._chosen(active, effect)
            case Released():
                self.offloading.released(active, effect)
            case WorkerWanted(useless):
                self.step_all(self.offloading.assign(active, useless))
            case Drop(slot):
                self._drop(active, slot)
            case Finished():
                self._finish(active, effect)

    def _drop(self, active: Active, slot: bool) -> None:
        """Frees its local draft; with `slot` it goes on in a fresh slot, with what it has emitted as part of its
        prompt."""
        self.local.close(active)
        if slot:
            self.stats.retries += 1
            self.close_slot(active)
            self.open(active)

    def _chosen(self, active: Active, chosen: Chosen) -> None:
        """Keeps the keys and values of the path taken, and sends its tokens."""
        self.stats.tokens += len(chosen.tokens)

        with Contained() as kept:
            self.target.keep(active.slot, chosen.rows)
        active.unkept = kept.error
        if kept.error is None:
            with self.isolated(active, "showing the path to its sources"):
                self.local.show_path(active)

        self.local.commit(active, chosen.tokens)
        event = chosen.event
        if event is not None:
            self._post(lambda: active.stream.push(event))

    # --- passes of the target ------------------------------------------------------------------------------------

    def verify(self, ready: Sequence[tuple[Active, Verify]]) -> None:
        """One pass over every ready request's tree; those that a failed pass has made suspect have one each."""
        together: list[tuple[Active, Work]] = []
        alone: list[tuple[Active, Work]] = []
        for active, action in ready:
            work = self._work(active, action)
            if work is None:
                continue
            if active.generation.retries.alone:
                alone.append((active, work))
            else:
                together.append((active, work))

        if together:
            self._pass(together)
        for member in alone:
            self._pass([member])

    def _work(self, active: Active, action: Verify) -> Work | None:
        """Its part of the pass; None after a fault."""
        generation = active.generation
        nodes: Sequence[Node] | None = None
        with self.isolated(active, "applying its constraint"):
            nodes = generation.select(action.nodes)
        if nodes is None:
            return None

        with self.isolated(active, "laying out its tree"):
            return Work(active.slot, generation.flatten(nodes))
        return None

    def _pass(self, group: Sequence[tuple[Active, Work]]) -> None:
        """One pass of the target and, if it succeeds, the end of each request's round."""
        actives = [active for active, _ in group]
        works = [work for _, work in group]
        began = self.clock()
        with Contained(self.pass_failed, actives) as contained:
            results = list(zip(group, self.target.verify(works), strict=True))
        if contained.error is not None:
            return

        self.stats.target_s += self.clock() - began
        self._failed.clear()
        self._unexplained = 0
        for timed in self.target.passes:  # each by its own rows: two passes of three rows are not one of six
            self.local.verify_s.sample(timed.rows, timed.seconds)

        for (active, work), rows in results:
            self._end_round(active, Verified(work.tree, rows))
        self.stats.rounds += 1

    def _end_round(self, active: Active, verified: Verified) -> None:
        """Has the request choose its tokens. If the target cannot keep their path, its pass has failed."""
        active.mean_rows.sample(len(verified.tree))
        self.step(active, verified, "choosing its tokens", fatal=True)

        error = active.unkept
        active.unkept = None
        if error is not None and not active.ended:
            self.pass_failed([active], error)

    # --- faults of one request -----------------------------------------------------------------------------------

    def _fault(
        self,
        active: Active,
        stage: str,
        fatal: bool,
        worker: str | None,
        error: Exception,
    ) -> None:
        """One request's own fault; never counted towards the end of the process. `worker`: whose message it was."""
        self.stats.faults += 1
        blamed = self._blamed(active, stage, worker)
        what = describe_fault(error)
        by = ""
        if blamed:
            by = f", over data of worker {' and '.join(blamed)}"
        log.error("request %d: a fault while %s: %s%s", active.id, stage, what, by)

        if fatal or active.generation.retries.plain:
            self._end(
                active,
                f"A fault of this gateway ended the answer while {stage} ({what}).",
            )
        else:
            why = f"a fault of the gateway while {stage}"
            first = next(iter(blamed), None)
            self._recover(active, Failed("speculation", why, first))

        for name in blamed:
            text = f"its candidates led to a fault of this gateway while {stage} ({what})"
            self.punish(name, RemoteProtocolError("fault", text), active.id)

    def _blamed(self, active: Active, stage: str, worker: str | None) -> Sequence[str]:
        """The workers whose data a fault in this stage was over."""
        if worker is not None:
            return [worker]
        if stage in WORKER_DATA:
            return list(active.generation.assignments.given)
        return []

    # --- failed passes of the target -----------------------------------------------------------------------------

    def pass_failed(self, actives: Sequence[Active], error: Exception) -> None:
        """A pass over these requests failed; one that fails alone although it was retried ends with an error."""
        self.stats.failed_passes += 1
        what = describe_fault(error)
        names = ", ".join(str(active.id) for active in actives)
        log.error("a pass of the target over request %s failed: %s", names, what)

        failed = Failed("pass", what)
        if len(actives) == 1:
            failed = Failed("own-pass", what)
            self._failed.add(actives[0].id)
        for active in actives:
            self._recover(active, failed)

    def turn_failed(self, actives: Sequence[Active], error: Exception) -> None:
        """Something failed that belongs to no request: all are retried, and it counts as if the target had failed."""
        self._unexplained += 1
        what = describe_fault(error)
        log.error("a turn of the engine failed: %s", what)
        for active in actives:
            if active.generation.retries.count >= MAX_RETRIES:
                self._end(
                    active,
                    f"A fault of this gateway ended the answer ({what}); please try again.",
                )
            else:
                self._recover(active, Failed("pass", what))

    def open(self, active: Active) -> bool:
        """Gives the request a slot for all its tokens so far; whether there was one."""
        generation = active.generation
        scope = active.request.cache_scope
        with Contained(self.pass_failed, [active]) as contained:
            active.slot, reused = self.target.open(generation.reading, scope, active.room.size)
            if self._drawing is not None:
                self._drawing.begin(active.slot, active.request)
        if contained.error is not None:
            return False

        self.step(active, Admitted(reused))
        return True

    def close_slot(self, active: Active) -> None:
        """Frees the request's slot, if it has one."""
        slot = active.slot
        active.slot = -1
        if slot < 0:
            return

        with Contained() as contained:
            self.target.close(slot)
        if contained.error is not None:
            log.error(
                "slot %d of the target could not be freed: %s",
                slot,
                describe_fault(contained.error),
            )

    def _end(self, active: Active, error: str) -> None:
        """The request ends with this error, unless it is over."""
        if not active.ended:
            self._recover(active, Ended("error", error))

    def _not_recovered(self, active: Active, error: Exception) -> None:
        """A fault while a request recovers from another one ends it."""
        what = describe_fault(error)
        log.error("request %d: a fault while recovering: %s", active.id, what)
        self._finish(
            active,
            Finished("error", f"A fault of this gateway ended the answer ({what})."),
        )
