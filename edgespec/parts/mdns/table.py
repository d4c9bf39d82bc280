"""The stored announcements, under a flood of false ones."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

MAX_ENTRIES = 64
MAX_PER_HOST = 4
"""A machine may run a few gateways, for several models."""

T = TypeVar("T")


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    hosts: frozenset[str]
    failures: int = 0


class Announcements(Generic[T]):
    """A bounded set of announced values, by their names, in which a flood of false ones cannot displace a true one.

    Only dialling shows whether an announcement is true. So an entry is replaced only by a new one, and only after a
    dial to it failed: false entries cannot displace one that has not failed, and are replaced as they are tried. The
    number of entries for one host is limited, so that announcing it repeatedly has no effect.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry[T]] = {}

    def values(self) -> list[T]:
        """Fewest failures first, then oldest first."""
        return [entry.value for entry in sorted(self._entries.values(), key=lambda entry: entry.failures)]

    def put(self, name: str, hosts: Collection[str], value: T) -> bool:
        """Adds or replaces an announcement that names these hosts; False if there is no room for it."""
        known = self._entries.pop(name, None)
        if known is not None and known.value == value:
            self._entries[name] = known
            return True

        victim = self._victim_for(frozenset(hosts))
        if victim is not None:
            if self._entries[victim].failures == 0:
                if known is not None:
                    self._entries[name] = known
                return False
            del self._entries[victim]
        self._entries[name] = _Entry(value, frozenset(hosts))
        return True

    def remove(self, name: str) -> None:
        self._entries.pop(name, None)

    def failed(self, tried: Callable[[T], bool]) -> list[str]:
        """Counts a failure for each announcement for which `tried` holds, and returns their names."""
        names = [name for name, entry in self._entries.items() if tried(entry.value)]
        for name in names:
            self._entries[name].failures += 1
        return names

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def _victim_for(self, hosts: frozenset[str]) -> str | None:
        """The entry to remove for a new one with these hosts: the one that failed most; None while there is room."""
        for host in hosts:
            same = [name for name, entry in self._entries.items() if host in entry.hosts]
            if len(same) >= MAX_PER_HOST:
                return max(same, key=lambda name: self._entries[name].failures)
        if len(self._entries) >= MAX_ENTRIES:
            return max(self._entries, key=lambda name: self._entries[name].failures)

        return None
