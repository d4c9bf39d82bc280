"""How many threads evaluate a model where the configuration leaves it open: fewer while passes stall, more later.

Threads of one pass wait for each other, so one of them that shares its core with another process holds up all: with as
many threads as cores, one busy loop beside them made passes forty times as long.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable

log = logging.getLogger("edgespec.threads")

STALL = 5.0
"""A pass is stalled if it takes so many times the fastest of the latest ones of its size. Passes alone vary by a
third, and a KV cache that fills makes them longer by little from one to the next."""
MAX_STALLED, RECENT, REMEMBERED = 3, 8, 64
"""More stalled passes than this among the recent ones are too many; passes of one size that are remembered."""
RETRY_S = 60.0
"""Time with fewer threads after which twice as many are tried; doubled each time, up to an hour."""
MAX_RETRY_S = 3600.0
_TRIALS = 4
"""Passes with each number of threads at the start."""


class Threads:
    """Chooses 1 to `limit` threads and sets them with `use`. On the thread that evaluates the model."""

    def __init__(
        self,
        limit: int,
        use: Callable[[int], object],
        clock: Callable[[], float] = time.monotonic,
        model: str = "target",
    ) -> None:
        """`model`: what the log calls it."""
        self.limit = self.count = limit
        self._model = model
        self._set, self._clock = use, clock
        self._latest: dict[int, deque[float]] = {}
        self._stalled: deque[bool] = deque(maxlen=RECENT)
        self._retry_s, self._since = RETRY_S, clock()

    def measure(self, step: Callable[[], object]) -> None:
        """Runs `step`, a pass over one row, with each number of threads in turn, and takes the fastest."""
        counts = [max(self.limit >> halvings, 1) for halvings in range(self.limit.bit_length())]
        taken: dict[int, list[float]] = {count: [] for count in counts}
        step()  # the first pass reads the weights
        for _ in range(_TRIALS):
            for count in counts:
                self._set(count)
                began = self._clock()
                step()
                taken[count].append(self._clock() - began)
        times = {count: statistics.median(taken[count]) for count in counts}
        self._use(min(counts, key=lambda count: times[count]))
        shown = ", ".join(f"{1000 * times[count]:.1f} ms with {count}" for count in sorted(times))
        log.info("the %s takes %d of %d threads (a pass: %s)", self._model, self.count, self.limit, shown)

    def passed(self, rows: int, seconds: float) -> None:
        """Notes a pass, and goes to fewer threads where several stalled, or back to more after a while."""
        latest = self._latest.setdefault(rows, deque(maxlen=REMEMBERED))
        self._stalled.append(bool(latest) and seconds > STALL * min(latest))
        latest.append(seconds)
        if self.count > 1 and sum(self._stalled) > MAX_STALLED:
            self._use(self.count // 2)
            text = "passes of the %s stall (%.0f ms): %d threads from now on"
            log.warning(text, self._model, 1000 * seconds, self.count)
        elif self.count < self.limit and self._clock() - self._since >= self._retry_s:
            self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)
            self._use(min(2 * self.count, self.limit))
            log.info("the %s tries %d threads again", self._model, self.count)

    def _use(self, count: int) -> None:
        self.count, self._since = count, self._clock()
        self._stalled.clear()
        self._set(count)
