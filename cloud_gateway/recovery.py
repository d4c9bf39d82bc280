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

from cloud_gateway.active import Active
from cloud_gateway.caught import Caught, describe_fault
from cloud_gateway.local import LocalDrafting
from cloud_gateway.offloading import Offloading
from cloud_gateway.stats import Stats
from cloud_gateway.target import Target
from edgespec.core.errors import RemoteProtocolError

log = logging.getLogger("cloud_gateway.engine")

MAX_FAILURES = 5
"""Different requests whose passes fail, without a good pass between, before the target counts as broken."""
MAX_RETRIES = 2
"""Retries of one request in fresh slots; after the last one its passes stay its own."""
WORKER_DATA = frozenset({"merging a frame", "deciding", "laying out its tree"})
"""Stages that handle what the request's worker sent."""


class Recovery:
    """Decides who is touched by a failure. Lives on the engine's thread."""

    def __init__(
        self,
        target: Target,
        local: LocalDrafting,
        offloading: Offloading,
        stats: Stats,
        fail: Callable[[Active, str], None],
    ) -> None:
        """`fail` ends a request with an error."""
        self._target, self._local, self._offloading, self._stats, self._fail = target, local, offloading, stats, fail
        self._failed: set[int] = set()
        self._unexplained = 0

    @property
    def target_broken(self) -> bool:
        """Whether so many different requests failed, without a good pass between, that the process should end."""
        return max(len(self._failed), self._unexplained) >= MAX_FAILURES

    # --- faults of one request -----------------------------------------------------------------------------------

    def guard(self, active: Active, stage: str, *, fatal: bool = False) -> Guard:
        """A context that keeps any exception of this stage to this request; `fatal` where it cannot go on."""
        return Guard(self, active, stage, fatal)

    def fault(self, active: Active, stage: str, error: Exception, *, fatal: bool = False) -> None:
        """One request's own fault; never counted towards the end of the process."""
        self._stats.faults += 1
        worker = active.assignment.worker if active.assignment and stage in WORKER_DATA else None
        what = describe_fault(error)
        by = f", over data of worker {worker[:16]}" if worker else ""
        log.error("request %d: a fault while %s: %s%s", active.id, stage, what, by)
        if fatal or active.plain_since_fault:
            self._fail(active, f"A fault of this gateway ended the answer while {stage} ({what}).")
        else:
            self._decode_plainly(active, f"a fault of the gateway while {stage}")
        if worker is not None:
            text = f"its candidates led to a fault of this gateway while {stage} ({what})"
            self._offloading.reject(active, worker, RemoteProtocolError("fault", text))

    # --- failed passes of the target -----------------------------------------------------------------------------

    def pass_succeeded(self, actives: Sequence[Active]) -> None:
        """A verify pass over these requests went well: the target works, and so do they."""
        self._failed.clear()
        self._unexplained = 0
        for active in actives:
            active.alone = active.retries >= MAX_RETRIES

    def pass_failed(self, actives: Sequence[Active], error: Exception) -> None:
        """A pass over these requests failed; one that fails alone although it was retried ends with an error."""
        self._stats.failed_passes += 1
        what = describe_fault(error)
        names = ", ".join(str(active.id) for active in actives)
        log.error("a pass of the target over request %s failed: %s", names, what)
        if len(actives) == 1:
            self._failed.add(actives[0].id)
        for active in actives:
            if active.alone and len(actives) == 1:
                self._fail(active, f"The target model failed on this request ({what}); please try again.")
            else:
                self._retry(active)

    def turn_failed(self, actives: Sequence[Active], error: Exception) -> None:
        """Something failed that belongs to no request: all are retried, and it counts as if the target had failed."""
        self._unexplained += 1
        what = describe_fault(error)
        log.error("a turn of the engine failed: %s", what)
        for active in actives:
            if active.retries >= MAX_RETRIES:
                self._fail(active, f"A fault of this gateway ended the answer ({what}); please try again.")
            else:
                self._retry(active)

    def close_slot(self, active: Active) -> None:
        """Frees the request's slot, if it has one."""
        slot, active.slot = active.slot, -1
        if slot < 0:
            return
        with Caught() as caught:
            self._target.close(slot)
        if caught.error is not None:
            log.error("slot %d of the target could not be freed: %s", slot, describe_fault(caught.error))

    def _retry(self, active: Active) -> None:
        """Starts the request again in a fresh slot, with what it has emitted as part of its prompt."""
        active.retries, active.alone = active.retries + 1, True
        self._stats.retries += 1
        self._decode_plainly(active, "a pass of the target model failed")
        self.close_slot(active)
        with Caught() as caught:
            active.open(self._target)
        if caught.error is not None:
            self._failed.add(active.id)
            what = describe_fault(caught.error)
            self._fail(active, f"The target model failed on this request ({what}); please try again.")

    def _decode_plainly(self, active: Active, why: str) -> None:
        self._offloading.release(active, "moved")
        self._local.close(active)
        active.decode_plainly(why)


class Guard:
    """See `Recovery.guard`; a class, since it is entered several times a round."""

    __slots__ = ("_active", "_fatal", "_recovery", "_stage")

    def __init__(self, recovery: Recovery, active: Active, stage: str, fatal: bool) -> None:
        self._recovery, self._active, self._stage, self._fatal = recovery, active, stage, fatal

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        self._recovery.fault(self._active, self._stage, error, fatal=self._fatal)
        return True
