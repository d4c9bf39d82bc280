"""A virtual clock: events in order of time, ties in order of scheduling."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable


class Clock:
    """Seconds from 0. Nothing here reads the machine's time, so a run depends on its seed alone."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Runs `action` at `when`, or now where that is past."""
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, action))

    def until(self, when: float) -> None:
        """Runs the events up to then, and moves on to it."""
        while self._events and self._events[0][0] <= when:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = max(self.now, when)

    @property
    def next_at(self) -> float:
        """When the next event is due; infinite without one."""
        return self._events[0][0] if self._events else math.inf

    def run(self, done: Callable[[], bool], limit_s: float) -> None:
        """Runs events until `done`. Raises TimeoutError past `limit_s` or when no event is left."""
        while not done():
            if not self._events:
                raise TimeoutError(f"nothing is left to happen at {self.now:.3f} s")
            self.now, _, action = heapq.heappop(self._events)
            if self.now > limit_s:
                raise TimeoutError(f"not done after {limit_s} virtual seconds")
            action()
