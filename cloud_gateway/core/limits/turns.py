"""Whose work is next, where several API keys wait for the same slots or the same thread.

First come, first served within a key. Between keys the one with the fewest items under way is next, and of equals the
one whose last turn is longest ago, so a key that queues a hundred items delays another key by one item at most. Of keys
that had no turn yet the one that has had something waiting for longest is next.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """A queue of items by key. An item is waiting from `add` to `take` and under way from then until `ended`."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[T]] = {}
        """Only keys that have something waiting."""
        self._running: Counter[str] = Counter()
        self._most: dict[str, int | None] = {}
        self._last: dict[str, int] = {}
        """The number of each key's last turn; as many entries as there are keys."""
        self._turn = itertools.count(1)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[T]:
        return itertools.chain.from_iterable(self._waiting.values())

    def waiting(self, key: str) -> int:
        return len(self._waiting.get(key, ()))

    def refuses(self, key: str, limit: int) -> bool:
        """Whether a queue of so many items has no place for one more of this key; a key that has nothing in it always
        has one."""
        return len(self) >= limit and self.waiting(key) > 0

    def add(self, key: str, item: T, most: int | None = None) -> None:
        """`most`: items of this key that may be under way at once, from now on; None for any number."""
        self._waiting.setdefault(key, deque()).append(item)
        self._most[key] = most

    def take(self, fits: Callable[[T], bool] = lambda item: True) -> T | None:
        """The next item, which is then under way; None if nothing waits that may begin and fits.

        If the first item of a key does not fit, that of another key may.
        """
        ready = [key for key in self._waiting if self._may_begin(key)]
        for key in sorted(ready, key=lambda key: (self._running[key], self._last.get(key, 0))):
            item = self._waiting[key][0]
            if fits(item):
                self._waiting[key].popleft()
                self._forget_empty(key)
                self._running[key] += 1
                self._last[key] = next(self._turn)
                return item

        return None

    def put_back(self, key: str, item: T) -> None:
        """An item that was under way waits again, before all others of its key."""
        self._waiting.setdefault(key, deque()).appendleft(item)
        self.ended(key)

    def ended(self, key: str) -> None:
        """An item of this key that was taken is over."""
        self._running[key] -= 1
        if not self._running[key]:
            del self._running[key]

    def remove(self, key: str, item: T) -> bool:
        """Gives up an item that waits; whether it still did."""
        items = self._waiting.get(key)
        if items is None or item not in items:
            return False
        items.remove(item)
        self._forget_empty(key)
        return True

    def _may_begin(self, key: str) -> bool:
        most = self._most[key]
        return most is None or self._running[key] < most

    def _forget_empty(self, key: str) -> None:
        if not self._waiting[key]:
            del self._waiting[key]
