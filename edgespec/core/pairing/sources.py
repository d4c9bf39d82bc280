"""Limits of one source of pairing attempts: one waiting connection, and a longer delay after each failure.

A source is one IPv4 address or one IPv6 /64 network. Pure: the caller passes `now` in, seconds of any monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

FREE_FAILURES = 1
"""Failures that cost no delay: a person mistypes a code once."""
FIRST_DELAY_S = 1.0
MAX_DELAY_S = 60.0
FORGET_S = 600.0
"""After this long without a failure a source's count is reset."""
MAX_SOURCES = 1024
"""Sources whose failures are stored, about 200 bytes each; an attacker with more can reset its own delays."""
MAX_WAITING = 8
"""Connections that have not sent their first message; a correct worker sends it at once."""

T = TypeVar("T")


class Delays:
    """How long each source has to wait before its next attempt: 1, 2, 4 … 60 s after failures in a row."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Number of failures and time of the last one; the source that failed longest ago comes first."""

    def wait_s(self, source: str, now: float) -> float:
        """Seconds until this source may try again; 0.0 if it may now."""
        failures, last = self._failures.get(source, (0, 0.0))
        if failures <= FREE_FAILURES or now - last >= FORGET_S:
            return 0.0
        doublings = min(failures - FREE_FAILURES - 1, 16)  # 2**16 s is far beyond the maximum
        return max(0.0, last + min(FIRST_DELAY_S * 2.0**doublings, MAX_DELAY_S) - now)

    def failed(self, source: str, now: float) -> None:
        failures, last = self._failures.pop(source, (0, now))
        self._failures[source] = (1 if now - last >= FORGET_S else failures + 1), now
        while len(self._failures) > MAX_SOURCES:
            self._failures.popitem(last=False)


class Waiting(Generic[T]):
    """Connections whose first message has not arrived yet: one per source, `MAX_WAITING` in all.

    A new connection is never refused: it replaces its own source's connection, else the oldest one.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, T] = OrderedDict()

    def enter(self, source: str, connection: T) -> T | None:
        """Adds a connection; returns the one that it replaces, if any."""
        gone = self._waiting.pop(source, None)
        if gone is None and len(self._waiting) >= MAX_WAITING:
            gone = self._waiting.popitem(last=False)[1]
        self._waiting[source] = connection
        return gone

    def leave(self, source: str, connection: T) -> None:
        """The connection has sent its message or ended; does nothing if it was replaced before."""
        if self._waiting.get(source) is connection:
            del self._waiting[source]
