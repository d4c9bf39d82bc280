"""Watches the passes of a model and the load of this machine, and sets the number of threads.

`ThreadCount` decides (count.py); this module measures.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgespec.parts.thread_choice.count import ThreadCount
from edgespec.shared.procstat import Rate, busy_s, task_stat
from edgespec.shared.threads import Step

log = logging.getLogger("edgespec.threads")

LOAD_PERIOD_S = 0.25
"""Between two reads of the load."""
_TRIALS = 4
"""Passes with each number of threads at the start, at least."""


class OtherLoad:
    """Cores of this process that others keep busy; without those of a lower priority, which make way at once."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._stat = root / "proc/stat"
        self._self = root / "proc/self"
        self._rate = Rate()
        self._cores = os.sched_getaffinity(0)

    def __call__(self, now: float) -> float | None:
        """None if this machine does not say."""
        low = os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) > 0
        try:
            return self._rate.of(now, busy_s(self._stat, self._cores, low=low) - task_stat(self._self).cpu_s)
        except (OSError, ValueError, IndexError):
            return None


class ChosenThreads:
    """A `ThreadUse` that takes as many threads as suit, beside whatever else runs on this machine."""

    def __init__(
        self,
        counts: Sequence[int],
        take: Callable[[int], object],
        model: str = "target",
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
        load: Callable[[float], float | None] | None = None,
        cores: int = 0,
    ) -> None:
        """`counts`: to choose from, ascending, two or more; `take` sets a number; `model`: what the log calls it;
        `cores`: that this process may use, 0 for those of its affinity."""
        self._counts = counts
        self._take = take
        self._model = model
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._load = load or OtherLoad()
        self._choice = ThreadCount(counts, cores or len(os.sched_getaffinity(0)), clock())
        self._load_at = -math.inf

    @property
    def count(self) -> int:
        return self._choice.count

    def begin(self, step: Step) -> None:
        """Runs `step` with each number of threads that other processes leave; takes the fastest."""
        self._take(self._counts[0])
        step()  # the first pass reads the weights

        medians = dict[int, float]()
        self._load(self._clock())
        for count in self._counts:
            if not self._choice.free_for(count, self._load(self._clock()) or 0.0):
                break
            enough = 2 * min(medians.values(), default=math.inf)
            medians[count] = statistics.median(self._trials(step, count, enough))

        self._choice.choose(min(medians, key=lambda count: medians[count]), self._clock())
        self._take(self.count)
        shown = ", ".join(f"{1000 * taken:.1f} ms with {count}" for count, taken in medians.items())
        log.info("the %s takes %d of %d threads (a pass: %s)", self._model, self.count, self._counts[-1], shown)

    def _trials(self, step: Step, count: int, enough: float) -> list[float]:
        """Seconds of some passes; no more after one that took at least `enough`. With one thread until the load is
        known."""
        began = self._clock()
        taken = list[float]()
        while len(taken) < _TRIALS or (count == 1 and self._clock() - began < LOAD_PERIOD_S):
            taken.append(self._timed(step, count))
            if taken[-1] >= enough:
                break

        return taken

    @contextmanager
    def watched(self, rows: int) -> Iterator[None]:
        """See `ThreadUse`; at the level debug each pass is logged."""
        began = self._clock()
        cpu_began = self._cpu_clock()
        count = self.count

        yield

        now = self._clock()
        log.debug("pass of the %s: %d rows, %.3f ms, threads: %d", self._model, rows, 1000 * (now - began), count)

        if self._choice.passed(now - began, self._cpu_clock() - cpu_began, now):
            log.info("a pass of the %s was held up (%.0f ms)", self._model, 1000 * (now - began))
            self._go_on("others took its cores")
        if now - self._load_at >= LOAD_PERIOD_S:
            self._read_load(now)

    def idle(self, step: Step) -> None:
        """May compare one pass with more threads and one with the present number."""
        if self._choice.most or not self._read_load(self._clock()):
            return

        more = self._choice.retry(self._clock())
        if more is not None:
            before = self.count
            times = [self._timed(step, count) for count in (self.count, more)]
            self._choice.compared(times[0], times[1], self._clock())
            self._go_on(f"{1000 * times[0]:.1f} ms with {before}, {1000 * times[1]:.1f} ms with {more}")

    def _read_load(self, now: float) -> bool:
        """Whether it can be read; if not, more threads are never tried."""
        self._load_at = now
        others = self._load(now)
        if others is not None and self._choice.loaded(others, now):
            self._go_on(f"others use {others:.1f} cores")
        return others is not None

    def _timed(self, step: Step, count: int) -> float:
        self._take(count)
        began = self._clock()
        step()
        return self._clock() - began

    def _go_on(self, why: str) -> None:
        self._take(self.count)
        log.info("the %s takes %d of %d threads: %s", self._model, self.count, self._counts[-1], why)
