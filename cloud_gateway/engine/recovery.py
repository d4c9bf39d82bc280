"""What happens to requests when something fails: an exception in one request never reaches another.

A fault in what a request does by itself (merging frames, deciding, choosing tokens) touches that request alone. Where
only speculation failed, the request goes on by plain decoding; where its tokens cannot be chosen, it ends with an
error. A worker whose data was being handled loses its link. Only a failed pass of the target touches several requests:
they are retried one at a time, by plain decoding in fresh slots, so that the one that makes passes fail ends alone.

A retry changes no token: what was emitted stays, nothing of a failed pass was, and the draws of `rejection` that
belong to tokens not yet chosen are kept, so that each is still drawn once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol

from cloud_gateway.core.requests.events import Admitted, Effect, Ended, Event, Failed
from cloud_gateway.core.requests.generation import MAX_RETRIES
from cloud_gateway.core.requests.request import Finish
from cloud_gateway.engine.active import Active
from cloud_gateway.engine.caught import Caught, describe_fault
from cloud_gateway.engine.offloading import Offloading
from cloud_gateway.engine.stats import Stats
from cloud_gateway.models.target_model import Target
from edgespec.core.errors import RemoteProtocolError

log = logging.getLogger("cloud_gateway.engine.loop")

MAX_FAILURES = 5
"""Different requests whose passes fail, without a good pass between, before the target counts as broken."""
WORKER_DATA = frozenset({"merging a frame", "deciding", "laying out its tree"})
"""Stages that handle what the request's worker sent."""


class Steps(Protocol):
    """What taking and carrying out steps of requests (steering.py) offers to repairs."""

    @property
    def clock(self) -> Callable[[], float]: ...
    @property
    def finish(self) -> Callable[[Active, Finish, str | None], None]: ...
    def step(self, active: Active, step: Event) -> None: ...
    def carry_out(self, active: Active, outputs: Sequence[Effect]) -> None: ...


class Recovery:
    """Decides who is touched by a failure. Lives on the engine's thread."""

    def __init__(self, target: Target, offloading: Offloading, stats: Stats, steering: Steps) -> None:
        self._target, self._offloading, self._stats, self._steering = target, offloading, stats, steering
        self._failed: set[int] = set()
        self._unexplained = 0

    @property
    def target_broken(self) -> bool:
        """Whether so many different requests failed, without a good pass between, that the process should end."""
        return max(len(self._failed), self._unexplained) >= MAX_FAILURES

    # --- faults of one request -----------------------------------------------------------------------------------

    def guard(self, active: Active, stage: str, *, fatal: bool = False, worker: str | None = None) -> Guard:
        """A context that keeps any exception of this stage to this request; `fatal` where it cannot go on; `worker`: of
        whom a message is handled."""
        return Guard(self, active, stage, fatal, worker)

    def fault(
        self, active: Active, stage: str, error: Exception, *, fatal: bool = False, worker: str | None = None
    ) -> None:
        """One request's own fault; never counted towards the end of the process. `worker`: whose message it was."""
        self._stats.faults += 1
        given = [one.worker for one in active.generation.assignments.given if stage in WORKER_DATA]
        blamed = given if worker is None else [worker]
        what = describe_fault(error)
        by = f", over data of worker {' and '.join(blamed)}" if blamed else ""
        log.error("request %d: a fault while %s: %s%s", active.id, stage, what, by)
        if fatal or active.generation.plain_since_fault:
            self._end(active, f"A fault of this gateway ended the answer while {stage} ({what}).")
        else:
            why = f"a fault of the gateway while {stage}"
            self._take(active, Failed("speculation", why, blamed[0] if blamed else None))
        for one in blamed:
            text = f"its candidates led to a fault of this gateway while {stage} ({what})"
            self._offloading.punish(one, RemoteProtocolError("fault", text), active.id)

    # --- failed passes of the target -----------------------------------------------------------------------------

    def pass_succeeded(self) -> None:
        """A verify pass went well: the target works."""
        self._failed.clear()
        self._unexplained = 0

    def pass_failed(self, actives: Sequence[Active], error: Exception) -> None:
        """A pass over these requests failed; one that fails alone although it was retried ends with an error."""
        self._stats.failed_passes += 1
        what, alone = describe_fault(error), len(actives) == 1
        names = ", ".join(str(active.id) for active in actives)
        log.error("a pass of the target over request %s failed: %s", names, what)
        if alone:
            self._failed.add(actives[0].id)
        for active in actives:
            self._take(active, Failed("own-pass" if alone else "pass", what))

    def turn_failed(self, actives: Sequence[Active], error: Exception) -> None:
        """Something failed that belongs to no request: all are retried, and it counts as if the target had failed."""
        self._unexplained += 1
        what = describe_fault(error)
        log.error("a turn of the engine failed: %s", what)
        for active in actives:
            if active.generation.retries >= MAX_RETRIES:
                self._end(active, f"A fault of this gateway ended the answer ({what}); please try again.")
            else:
                self._take(active, Failed("pass", what))

    def open(self, active: Active) -> bool:
        """Gives the request a slot for all its tokens so far; whether there was one."""
        generation = active.generation
        with Caught() as caught:
            active.slot, reused = self._target.open(generation.reading, active.request.cache_scope, active.room.size)
        if caught.error is None:
            self._steering.step(active, Admitted(reused))
        else:
            self.pass_failed([active], caught.error)
        return caught.error is None

    def reopen(self, active: Active) -> None:
        """Puts the request into a fresh slot, with what it has emitted as part of its prompt."""
        self._stats.retries += 1
        self.close_slot(active)
        self.open(active)

    def close_slot(self, active: Active) -> None:
        """Frees the request's slot, if it has one."""
        slot, active.slot = active.slot, -1
        if slot < 0:
            return
        with Caught() as caught:
            self._target.close(slot)
        if caught.error is not None:
            log.error("slot %d of the target could not be freed: %s", slot, describe_fault(caught.error))

    def _end(self, active: Active, error: str) -> None:
        if not active.ended:
            self._take(active, Ended("error", error))

    def _take(self, active: Active, step: Event) -> None:
        """A step that repairs; a fault in it ends the request without more ado, so that repairs do not go round."""
        with Caught() as caught:
            self._steering.carry_out(active, active.generation.handle(step, self._steering.clock()))
        if caught.error is not None:
            what = describe_fault(caught.error)
            log.error("request %d: a fault while recovering: %s", active.id, what)
            self._steering.finish(active, "error", f"A fault of this gateway ended the answer ({what}).")


class Guard:
    """See `Recovery.guard`; a class, since it is entered several times a round."""

    __slots__ = ("_active", "_fatal", "_recovery", "_stage", "_worker")

    def __init__(self, recovery: Recovery, active: Active, stage: str, fatal: bool, worker: str | None) -> None:
        self._recovery, self._active, self._stage, self._fatal, self._worker = recovery, active, stage, fatal, worker

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        self._recovery.fault(self._active, self._stage, error, fatal=self._fatal, worker=self._worker)
        return True
