"""What a source of signs of the owner is, and how rates are taken from counters."""

from __future__ import annotations

from collections import deque
from typing import Protocol

WINDOW_S = 0.5
"""Over which rates are taken. Half of the second within which drafting stops; 50 ticks of /proc/stat."""


class Unavailable(Exception):
    """A source cannot be read on this machine; the text says why and completes "off: …"."""


class Source(Protocol):
    """One kind of sign. Any method may raise Unavailable; the source is opened again later."""

    name: str
    """A key of `edgespec.core.presence.REASONS`."""
    period_s: float
    """Seconds between two reads."""

    async def open(self) -> None:
        """Finds what is read; the first read gives the state that later ones are compared with."""

    def read(self, now: float) -> float:
        """The latest value, in at most some hundred microseconds; it never waits for another process."""

    async def close(self) -> None:
        """Releases what `open` took."""
        return


class Rate:
    """Growth per second of a counter, over the latest `WINDOW_S` or the time between two reads if that is longer."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def of(self, now: float, count: float) -> float:
        """The rate after a read of the counter; 0 after the first one."""
        self._seen.append((now, count))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW_S:
            self._seen.popleft()
        began, before = self._seen[0]
        return max(count - before, 0.0) / (now - began) if now > began else 0.0
