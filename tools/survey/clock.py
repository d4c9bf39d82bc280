"""The time of day for a survey: the machine's, or for demonstrations one that runs faster."""

from __future__ import annotations

import math
import time


class Clock:
    """Seconds since 1970. With `scale` above 1, time runs faster by that factor; durations are never scaled."""

    def __init__(self, scale: float = 1.0, start: float | None = None) -> None:
        self.scale = scale
        self._origin = time.monotonic()
        self._start = time.time() if start is None else start

    def now(self) -> float:
        """The time of day; the machine's own, which may be set while a survey runs, unless `scale` is another."""
        return time.time() if self.scale == 1 else self._start + (time.monotonic() - self._origin) * self.scale

    def seconds_to(self, at: float) -> float | None:
        """How long to sleep until then, at most a minute, since clocks may be set; None for never."""
        return None if math.isinf(at) else min(max(at - self.now(), 0.0) / self.scale, 60.0)
