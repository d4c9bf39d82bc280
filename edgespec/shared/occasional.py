"""A rate-limited logger for lines that a client or worker can cause: each kind at most once a minute, with a count."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable

from edgespec.shared.throttle import Throttle


class Occasional:
    """Limits the lines of one logger by kind."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, monotonic."""
        self._log, self._clock = log, clock
        self._throttle = Throttle()

    def warning(self, kind: Hashable, text: str) -> None:
        """`line` with level WARNING."""
        self.line(logging.WARNING, kind, text)

    def line(self, level: int, kind: Hashable, text: str, error: BaseException | None = None) -> None:
        """Logs `text`, unless a line of this kind was logged within the last minute; then it is counted.

        `error`: what caused it, of which the log shows kind and place.
        """
        left_out = self._throttle.admit(kind, self._clock())
        if left_out is not None:
            more = f" (and {left_out} more like it)" if left_out else ""
            self._log.log(level, "%s%s", text, more, exc_info=error)
