"""Connections that have presented a key and wait for their next request, a bounded number of each key."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

MAX_IDLE_PER_KEY = 64
"""Pools of HTTP clients keep 10 to 20; without a bound one key could hold every connection of the port."""


class Idle(Protocol):
    """What is kept of a connection."""

    def close_idle(self) -> None:
        """Closes it, once its last response is out."""


class IdleConnections:
    """Of one listener. The oldest of a key makes room for its newest."""

    def __init__(self, most: int = MAX_IDLE_PER_KEY) -> None:
        self._most = most
        self._by_key: dict[str, OrderedDict[Idle, None]] = {}
        """Only keys that have one."""

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def add(self, key: str, connection: Idle) -> None:
        """A request has ended. Closes the oldest one of this key where there are too many."""
        mine = self._by_key.setdefault(key, OrderedDict())
        mine[connection] = None
        if len(mine) > self._most:
            oldest, _ = mine.popitem(last=False)
            oldest.close_idle()

    def discard(self, key: str, connection: Idle) -> None:
        """A request has begun, or the connection has ended."""
        mine = self._by_key.get(key, OrderedDict())
        mine.pop(connection, None)
        if not mine:
            self._by_key.pop(key, None)
