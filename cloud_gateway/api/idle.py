"""Connections that have presented a key and wait for their next request, a bounded number of each key."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

MAX_IDLE_PER_KEY = 64
"""Pools of HTTP clients keep 10 to 20; without a bound one key could hold every connection of the port."""


class Idle(Protocol):
    """A connection in the table."""

    def close_idle(self) -> None:
        """Closes it after its last response."""


class IdleConnections:
    """The idle connections of one listener. Beyond the bound, the oldest of a key is closed."""

    def __init__(self) -> None:
        self._by_key: dict[str, OrderedDict[Idle, None]] = {}
        """Only keys with idle connections."""

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def add(self, key: str, connection: Idle) -> None:
        """A request has ended. Closes the oldest connection of this key where there are too many."""
        mine = self._by_key.setdefault(key, OrderedDict())
        mine[connection] = None
        if len(mine) > MAX_IDLE_PER_KEY:
            oldest, _ = mine.popitem(last=False)
            oldest.close_idle()

    def discard(self, key: str, connection: Idle) -> None:
        """A request has begun, or the connection has ended."""
        mine = self._by_key.get(key, OrderedDict())
        mine.pop(connection, None)
        if not mine:
            self._by_key.pop(key, None)
