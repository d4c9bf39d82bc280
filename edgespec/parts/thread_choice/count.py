"""How many threads one model takes, decided from its passes and from the load of other processes.

| event | fewer threads | more threads |
| --- | --- | --- |
| `passed`: a pass got less than MIN_SHARE of its threads' time on processors | the next smaller number | |
| `loaded`: other processes leave fewer cores than threads | as many as are left | not for QUIET_S |
| `retry`, between requests, a while after the last change | | one pass is tried with the next larger number |
| `compared`: that pass beside one with the present number | | stay there if it was faster |
"""

from __future__ import annotations

from collections.abc import Sequence

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
        if more_s < FASTER * fewer_s:
            self._at += 1
