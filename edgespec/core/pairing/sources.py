"""A longer delay after each failed pairing attempt of one source.

A source is one IPv4 address or one IPv6 /64 network. Pure: the caller passes `now` in, seconds of any monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict

FREE_FAILURES = 1
"""Failures that cost no delay: a person mistypes a code once."""
FIRST_DELAY_S = 1.0
MAX_DELAY_S = 60.0
FORGET_S = 600.0
"""After this long without a failure a source's count is reset."""
MAX_SOURCES = 1024
"""Sources whose failures are stored, about 200 bytes each; an attacker with more can reset its own delays."""


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
