"""What a draft step takes at a worker now: the curve measured at start, times how much longer the latest steps took.

Wall clock time, with every wait for a core: a worker whose owner uses the machine reports it with its next step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from edgespec.core.numbers import interpolate
from edgespec.core.protocol.messages import MAX_LEAVES, MAX_MICROS, MAX_POINTS, StepTimes

REMEMBERED = 8
"""Steps in the mean. A mean, because a starved worker has most steps on time and a few that take ten times as long."""
MAX_FACTOR = 100.0
"""Greatest factor of one step, so that one that was suspended does not hide the next ones."""
CHANGE = 0.2
"""Relative change from which the gateway is sent the times again."""
REPORT_EVERY_S = 0.1
"""Shortest time between two reports."""


class DraftCurve:
    """Callable: seconds of a draft step over so many leaves."""

    def __init__(self, measured: Mapping[int, float]) -> None:
        """`measured`: leaves -> seconds, 1 leaf among them, at most `MAX_POINTS`."""
        if 1 not in measured or len(measured) > MAX_POINTS or max(measured) > MAX_LEAVES:
            raise ValueError(f"a curve has a time for 1 leaf and at most {MAX_POINTS} points up to {MAX_LEAVES} leaves")
        self._measured = dict(sorted(measured.items()))
        self._factors: deque[float] = deque(maxlen=REMEMBERED)
        self._factor = self._reported = 1.0
        self._reported_at = float("-inf")

    def __call__(self, leaves: int) -> float:
        """Seconds expected of a step over this many leaves."""
        return interpolate(self._measured, leaves) * self._factor

    def sample(self, leaves: int, seconds: float) -> None:
        """One step over this many leaves has ended."""
        self._factors.append(min(max(seconds / interpolate(self._measured, leaves), 1 / MAX_FACTOR), MAX_FACTOR))
        self._factor = sum(self._factors) / len(self._factors)

    def report(self) -> StepTimes:
        """The times as they are now."""
        micros = (round(self(leaves) * 1e6) for leaves in self._measured)
        return StepTimes(list(self._measured), [min(max(one, 1), MAX_MICROS) for one in micros])

    def changed(self, now: float) -> StepTimes | None:
        """A report where the times have changed since the latest one, else None."""
        ratio = self._factor / self._reported
        if 1 / (1 + CHANGE) <= ratio <= 1 + CHANGE or now < self._reported_at + REPORT_EVERY_S:
            return None
        self._reported, self._reported_at = self._factor, now
        return self.report()
