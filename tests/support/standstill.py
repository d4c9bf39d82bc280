"""Standstills of the machine, so that a measured time can be compared without them."""

from __future__ import annotations

import threading
import time

LOOK_S = 0.005
MIN_S = 0.1
"""By which a thread without work comes back late only where the machine, or all of these processes, stood still."""


class Standstills:
    """A thread that notes when it came back late; a context manager. Ask once the block has been left."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Standstills:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def _watch(self) -> None:
        left, before = False, time.monotonic()
        while not left:
            left = self._left.wait(LOOK_S)
            now = time.monotonic()
            if now - before > MIN_S:
                self._spans.append((before, now))
            before = now

    def without(self, start: float, end: float) -> float:
        """Seconds between two monotonic times in which the machine did not stand still."""
        return end - start - sum(max(min(end, last) - max(start, first), 0.0) for first, last in self._spans)
