"""How many threads evaluate a model: fewer at once if other processes take their cores, more when no request runs.

Threads of one pass wait for each other, so one of them that shares its core with another process holds up all: with as
many threads as cores, one busy loop beside them made passes forty times as long. `ThreadCount` decides, by

| event | fewer threads | more threads |
| --- | --- | --- |
| `passed`: a pass got less than MIN_SHARE of its threads' time on processors | the next smaller number | |
| `loaded`: other processes leave fewer cores than threads | as many as are left | not for QUIET_S |
| `retry`, between requests, a while after the last change | | one pass is tried with the next larger number |
| `compared`: that pass beside one with the present number | | stay there if it was faster |

and `Threads` measures, and sets the number if the configuration leaves it open.
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

from edgespec.shared.procstat import Rate, busy_s, task_stat

MIN_SHARE = 0.75
"""Undisturbed passes of two threads had 0.86 to 1 of their time on processors, those beside busy loops up to 0.56."""
MIN_PASS_S = 0.002
"""Of shorter passes the share says nothing: threads that slept have to be woken first."""
SPARE = 0.5
"""Cores that others may use of those that the threads take: short work of other processes is everywhere."""
QUIET_S = 60.0
"""Others must have left enough cores for so long before more threads are tried, also while requests ran."""
RETRY_S = 60.0
"""Time after a change until more threads are tried; doubled at each trial, up to an hour."""
MAX_RETRY_S = 3600.0
FASTER = 0.9
"""A pass with more threads must take less than this share of the time with fewer."""


def thread_counts(cores: int) -> list[int]:
    """The numbers to choose from, ascending: each about half the next."""
    return sorted({max(cores >> halvings, 1) for halvings in range(cores.bit_length())})


class ThreadCount:
    """The number of threads of one model. Times in seconds."""

    def __init__(self, counts: Sequence[int], cores: int, now: float) -> None:
        """`counts`: to choose from, ascending; the largest one is the first choice."""
        self._counts = counts
        self._cores = cores
        self._at = len(counts) - 1
        self._since = now
        self._quiet_from = now
        self._retry_s = RETRY_S

    @property
    def count(self) -> int:
        return self._counts[self._at]

    @property
    def most(self) -> bool:
        """Whether there is no larger number."""
        return self._at == len(self._counts) - 1

    def free_for(self, count: int, others: float) -> bool:
        """Whether other processes, which keep so many cores busy, leave enough for this number of threads."""
        return count == 1 or count <= self._cores - others + SPARE

    def choose(self, count: int, now: float) -> None:
        """Takes this one of the numbers."""
        self._at = self._counts.index(count)
        self._since = now

    def passed(self, seconds: float, cpu_s: float, now: float) -> bool:
        """A pass took so long, with so much time on processors; whether that leads to fewer threads."""
        held_up = cpu_s < MIN_SHARE * self.count * seconds
        if self._at == 0 or seconds < MIN_PASS_S or not held_up:
            return False

        if now - self._since > MAX_RETRY_S:
            self._retry_s = RETRY_S
        self._at = self._at - 1
        self._since = now
        return True

    def loaded(self, others: float, now: float) -> bool:
        """Other processes keep so many cores busy; whether that leads to fewer threads."""
        if not self.most and not self.free_for(self._counts[self._at + 1], others):
            self._quiet_from = now
        fewer = self._at
        while fewer and not self.free_for(self._counts[fewer], others):
            fewer -= 1
        if fewer == self._at:
            return False

        self._at = fewer
        self._since = now
        self._quiet_from = now
        return True

    def retry(self, now: float) -> int | None:
        """The larger number to compare with now; only to be asked when no request waits, after `loaded`."""
        if self.most or now - self._since < self._retry_s or now - self._quiet_from < QUIET_S:
            return None
        self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)
        return self._counts[self._at + 1]

    def compared(self, fewer_s: float, more_s: float, now: float) -> None:
        """One pass each, over the same rows, with the present number and the one of `retry`."""
        self._since = now
        self._at += more_s < FASTER * fewer_s


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


class Threads:
    """Runs passes of a model with as many threads as suit. On the thread that evaluates the model."""

    def __init__(
        self,
        counts: Sequence[int],
        use: Callable[[int], object],
        model: str = "target",
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
        load: Callable[[float], float | None] | None = None,
        cores: int = 0,
    ) -> None:
        """`counts`: to choose from, ascending; a single one is never changed. `use` sets a number; `model`: what the
        log calls it; `cores`: that this process may use, 0 for those of its affinity."""
        self._counts = counts
        self._set = use
        self._model = model
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._load = load or OtherLoad()
        self._choice = ThreadCount(counts, cores or len(os.sched_getaffinity(0)), clock())
        self._load_at = -math.inf

    @property
    def count(self) -> int:
        return self._choice.count

    def measure(self, step: Callable[[], object]) -> None:
        """Runs `step`, a pass over one row, with each number of threads that others leave; takes the fastest."""
        if len(self._counts) == 1:
            return

        self._set(self._counts[0])
        step()  # the first pass reads the weights
        began = self._clock()
        medians = dict[int, float]()
        self._load(began)
        for count in self._counts:
            if not self._choice.free_for(count, self._load(self._clock()) or 0.0):
                break
            medians[count] = statistics.median(self._trials(step, count, 2 * min(medians.values(), default=math.inf)))
        self._choice.choose(min(medians, key=lambda count: medians[count]), self._clock())
        self._set(self.count)
        shown = ", ".join(f"{1000 * taken:.1f} ms with {count}" for count, taken in medians.items())
        log.info("the %s takes %d of %d threads (a pass: %s)", self._model, self.count, self._counts[-1], shown)

    def _trials(self, step: Callable[[], object], count: int, enough: float) -> list[float]:
        """Seconds of some passes; no more after one that took at least `enough`. With one thread until the load is
        known."""
        began = self._clock()
        taken = list[float]()
        while len(taken) < _TRIALS or (count == 1 and self._clock() - began < LOAD_PERIOD_S):
            taken.append(self._timed(step, count))
            if taken[-1] >= enough:
                break

        return taken

    def fix(self) -> None:
        self._counts = [self.count]

    @contextmanager
    def watched(self, rows: int) -> Iterator[None]:
        """Around each pass, over so many rows; at the level debug it is logged (record 102)."""
        began = self._clock()
        cpu_began = self._cpu_clock()
        count = self.count
        yield
        now = self._clock()
        log.debug("pass of the %s: %d rows, %.3f ms, threads: %d", self._model, rows, 1000 * (now - began), count)
        if len(self._counts) == 1:
            return

        if self._choice.passed(now - began, self._cpu_clock() - cpu_began, now):
            log.info("a pass of the %s was held up (%.0f ms)", self._model, 1000 * (now - began))
            self._go_on("others took its cores")
        if now - self._load_at >= LOAD_PERIOD_S:
            self._read_load(now)

    def idle(self, step: Callable[[], object]) -> None:
        """To be called when no request waits: may try `step`, a pass over one row, with more threads."""
        if len(self._counts) == 1 or self._choice.most or not self._read_load(self._clock()):
            return

        more = self._choice.retry(self._clock())
        if more is not None:
            before = self.count
            times = [self._timed(step, count) for count in (self.count, more)]
            self._choice.compared(times[0], times[1], self._clock())
            self._go_on(f"{1000 * times[0]:.1f} ms with {before}, {1000 * times[1]:.1f} ms with {more}")

    def _read_load(self, now: float) -> bool:
        """Whether it can be read; if not, more threads are never tried."""
        self._load_at, others = now, self._load(now)
        if others is not None and self._choice.loaded(others, now):
            self._go_on(f"others use {others:.1f} cores")
        return others is not None

    def _timed(self, step: Callable[[], object], count: int) -> float:
        self._set(count)
        began = self._clock()
        step()
        return self._clock() - began

    def _go_on(self, why: str) -> None:
        self._set(self.count)
        log.info("the %s takes %d of %d threads: %s", self._model, self.count, self._counts[-1], why)
