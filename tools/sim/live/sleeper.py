"""Sleep that ends on time: systems wake a sleeper 30 to 100 microseconds late, and usually by the same amount."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

START_LATE_S = 60e-6
"""First estimate of how much too late the system wakes (timer slack and scheduling)."""
LEARN_S = 1e-6
"""By how much one sleep moves that estimate."""
REMEMBERED = 1 << 16


class Sleeps(Protocol):
    """What lets time pass: this machine's, or a virtual one's."""

    def now(self) -> float: ...
    def until(self, due: float) -> None: ...
    def summary(self) -> dict[str, float]: ...


class Sleeper:
    """Sleeps until a moment, and asks to be woken as much earlier as the system usually is late. For one thread.

    The correction is the running median, which a few long delays (another process had the core) do not move.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._late_s = START_LATE_S
        self.errors: deque[float] = deque(maxlen=REMEMBERED)
        """Seconds between the latest moments asked for and the returns."""

    def now(self) -> float:
        """By its clock."""
        return self._clock()

    def until(self, due: float) -> None:
        """Returns about then; at once where that is past."""
        ahead = due - self._clock() - self._late_s
        if ahead > 0:
            self._sleep(ahead)
        error = self._clock() - due
        self.errors.append(error)
        if ahead > 0:
            self._late_s = max(self._late_s + (LEARN_S if error > 0 else -LEARN_S), 0.0)

    def summary(self) -> dict[str, float]:
        """Microseconds of `errors`: mean and percentiles; empty before the second one."""
        if len(self.errors) < 2:
            return {}
        figures = {"mean": np.mean(self.errors)} | {f"p{q}": np.percentile(self.errors, q) for q in (50, 90, 99)}
        return {f"{name}_us": round(float(seconds) * 1e6, 1) for name, seconds in figures.items()}
