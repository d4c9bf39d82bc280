"""Log lines about what anybody can provoke: each kind at most once a minute, with a count of what was left out."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable

EVERY_S = 60.0
MAX_KINDS = 1024
"""Kinds whose last line is remembered; beyond it the one that was logged longest ago is forgotten."""


class Occasional:
    """Limits the lines of one logger by kind."""

    def __init__(
        self, log: logging.Logger, every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock`: seconds, monotonic."""
        self._log, self._every_s, self._clock = log, every_s, clock
        self._logged_at: dict[Hashable, float] = {}
        self._left_out: Counter[Hashable] = Counter()

    def warning(self, kind: Hashable, text: str) -> None:
        """Logs `text`, unless a line of this kind was logged within the last `every_s`; then it is counted."""
        now = self._clock()
        last = self._logged_at.pop(kind, None)
        if last is not None and now - last < self._every_s:
            self._logged_at[kind] = last
            self._left_out[kind] += 1
            return
        self._logged_at[kind] = now
        left_out = self._left_out.pop(kind, 0)
        self._log.warning("%s%s", text, f" (and {left_out} more like it)" if left_out else "")
        if len(self._logged_at) > MAX_KINDS:
            oldest = min(self._logged_at, key=lambda one: self._logged_at[one])
            del self._logged_at[oldest]
            self._left_out.pop(oldest, None)
