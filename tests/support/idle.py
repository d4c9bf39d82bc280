"""Whether a thread that works until it waits for an event has come to wait."""

from __future__ import annotations

import threading
import time

WAIT_S = 20.0


class Idle(threading.Event):
    """An event that knows whether its thread waits for it without a time limit; for one thread that waits."""

    def __init__(self) -> None:
        super().__init__()
        self._waits = 0
        self._waiting: int | None = None
        """The number of the wait that goes on."""

    def wait(self, timeout: float | None = None) -> bool:
        """In the thread."""
        self._waits += 1
        self._waiting = self._waits if timeout is None else None
        try:
            return super().wait(timeout)
        finally:
            self._waiting = None

    @property
    def idle(self) -> bool:
        """Whether the thread waits and nothing has woken it. Between the two looks nobody but the thread may set it."""
        before = self._waiting
        return before is not None and not self.is_set() and self._waiting == before

    def until_idle(self) -> None:
        """Returns when the thread has done all that it was woken for."""
        deadline = time.monotonic() + WAIT_S
        while not self.idle:
            assert time.monotonic() < deadline, "the thread does not come to rest"
            time.sleep(0.001)
