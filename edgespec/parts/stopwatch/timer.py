"""Times of draft steps: those of an earlier start or assumed ones at first, measured when the machine leaves the time.

A worker that starts beside a long compile would need minutes to time its steps, and would report the times of those
minutes. So it links with what it has, and times its steps while no request is open. A measurement during which its
threads waited for a core is dropped, and made again later. Meanwhile the steps of requests correct the level of the
curve (`DraftCurve.sample`), but not its shape.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Annotated

import msgspec

from edgespec.core.protocol.messages import MAX_LEAVES, MAX_POINTS
from edgespec.llamacpp.drafter import Drafter
from edgespec.llamacpp.step_time import timed_steps
from edgespec.shared.folders import cache_dir
from edgespec.shared.procstat import waited_s
from edgespec.worker.config import DraftSection
from edgespec.worker.step_timer import ASSUMED, StepTimer

log = logging.getLogger("edgespec.stopwatch")

MAX_WAITED = 0.1
"""Share of a measurement that the worker's threads may wait for a core."""
GRACE_S = 0.05
"""Seconds of waiting that are never a disturbance: a thread that is woken waits for the one that wakes it."""
RETRY_S = 60.0
"""After a measurement that was disturbed."""

Leaves = Annotated[int, msgspec.Meta(ge=1, le=MAX_LEAVES)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
Points = Annotated[dict[Leaves, Seconds], msgspec.Meta(min_length=1, max_length=MAX_POINTS)]


class Stopwatch(StepTimer):
    """Measures a worker's step times once, and stores them for its next start."""

    def __init__(self, draft: DraftSection, drafter: Drafter) -> None:
        # The folder may be shared by machines of different speed.
        facts = [
            platform.node(),
            drafter.model_digest.hex(),
            drafter.sequences,
            drafter.together,
            draft.threads,
            draft.n_gpu_layers,
            sorted(os.sched_getaffinity(0)),
        ]
        self._file = cache_dir() / "step-times" / hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
        self._due_at = 0.0
        self.measured: Mapping[int, float] | None = None
        """Seconds by leaves, undisturbed; None until they are measured."""

    def known(self) -> Mapping[int, float]:
        """The times that an earlier start measured; else the assumed ones."""
        try:
            points = msgspec.json.decode(self._file.read_bytes(), type=Points)
        except (OSError, msgspec.DecodeError):
            return ASSUMED

        if 1 not in points:
            return ASSUMED
        return points

    def wait_s(self, now: float) -> float | None:
        if self.measured is not None:
            return None
        return max(self._due_at - now, 0.0)

    def measure(self, drafter: Drafter, now: float, wanted: Callable[[], bool]) -> Mapping[int, float] | None:
        """None if there is other work, if it is not due, or if other programs disturbed it."""
        if self.wait_s(now) != 0:
            return None

        began = time.monotonic()
        waited = waited_s(os.getpid())
        points = dict[int, float]()
        with closing(timed_steps(drafter)) as steps:
            for leaves, seconds in steps:
                if wanted():
                    return None
                points[leaves] = min(seconds, points.get(leaves, seconds))
                if waited_s(os.getpid()) - waited > MAX_WAITED * (time.monotonic() - began) + GRACE_S:
                    log.info("this machine is busy: draft steps are timed later")
                    self._due_at = now + RETRY_S
                    return None

        self.measured = points
        self._store(points)
        shown = ", ".join(f"{1e3 * seconds:.1f} ms with {leaves}" for leaves, seconds in sorted(points.items()))
        log.info("draft steps are timed, by leaves: %s", shown)
        return points

    def status(self) -> Mapping[str, object]:
        """`timed_step_ms`: of a step over one leaf, undisturbed; null until it is measured."""
        measured = self.measured
        if measured is None:
            return {"timed_step_ms": None}
        return {"timed_step_ms": round(measured[1] * 1e3, 3)}

    def _store(self, points: Mapping[int, float]) -> None:
        with suppress(OSError):  # the next start begins with assumed times
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part = self._file.with_suffix(".part")
            part.write_bytes(msgspec.json.encode(points))
            part.replace(self._file)
