"""The requests that wait for a slot: put in by the event loop, taken out by the engine's thread, in fair turns."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cloud_gateway.core.limits.turns import Turns
from cloud_gateway.engine.active import Active
from edgespec.core.errors import ClientError


class Waiting:
    """`Turns` by API key under a lock, with an end."""

    def __init__(self, limit: int) -> None:
        self._turns: Turns[Active] = Turns()
        self._limit, self._lock = limit, threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._turns)

    def all(self) -> list[Active]:
        """Every request that waits."""
        with self._lock:
            return list(self._turns)

    def add(self, active: Active) -> None:
        """Raises ClientError 429 where the queue is full; a key that has nothing in it may always add one."""
        request = active.request
        with self._lock:
            length = len(self._turns)
            if length >= self._limit and self._turns.waiting(request.key):
                raise ClientError(
                    f"The queue of {self._limit} requests is full; try again shortly.",
                    status=429,
                    code="queue_full",
                    retry_after_s=max(1.0, length * 0.5),
                )
            self._turns.add(request.key, active, request.max_running)

    def take(self, fits: Callable[[Active], bool], is_next: Callable[[Active], bool]) -> Active | None:
        """The next one for a free slot that fits, or None; say `ended` when it has left its slot."""
        with self._lock:
            return self._turns.take(fits, is_next)

    def put_back(self, active: Active) -> None:
        """One that was taken waits again, before all others of its key, also where the queue is full."""
        with self._lock:
            self._turns.put_back(active.request.key, active)

    def ended(self, active: Active) -> None:
        """A request that was taken is over."""
        with self._lock:
            self._turns.ended(active.request.key)

    def remove(self, active: Active) -> bool:
        """Gives up the place of one that waits; whether it still did."""
        with self._lock:
            return self._turns.remove(active.request.key, active)
