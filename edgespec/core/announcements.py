"""What to remember of announcements that anybody can make, so that no flood of them hides the one that is true.

Nothing tells a true announcement from a false one but trying it. So an entry goes only for a newcomer, and only if it
was tried and failed: a flood of false ones cannot push out one that has not failed, and makes room for others as it is
tried. One host has few entries, so that naming it often is worth nothing.
"""

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
    """Announced values by the name of the announcement."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry[T]] = {}

    def values(self) -> list[T]:
        """Those that failed least often first, then in the order of their coming."""
        return [entry.value for entry in sorted(self._entries.values(), key=lambda entry: entry.failures)]

    def put(self, name: str, hosts: Collection[str], value: T) -> bool:
        """Adds or replaces an announcement that names these hosts; False where there is no room for it."""
        known = self._entries.pop(name, None)
        if known is not None and known.value == value:
            self._entries[name] = known
            return True
        victim = self._in_the_way(frozenset(hosts))
        if victim is not None:
            if self._entries[victim].failures == 0:
                if known is not None:
                    self._entries[name] = known
                return False
            del self._entries[victim]
        self._entries[name] = _Entry(value, frozenset(hosts))
        return True

    def remove(self, name: str) -> None:
        """The announcement was taken back."""
        self._entries.pop(name, None)

    def failed(self, tried: Callable[[T], bool]) -> None:
        """What the announcements for which `tried` holds say has proven false, or is out of reach."""
        for entry in self._entries.values():
            entry.failures += tried(entry.value)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def _in_the_way(self, hosts: frozenset[str]) -> str | None:
        """Which entry has to go for a new one with these hosts, the one that failed most; None where there is room."""
        for host in hosts:
            same = [name for name, entry in self._entries.items() if host in entry.hosts]
            if len(same) >= MAX_PER_HOST:
                return max(same, key=lambda name: self._entries[name].failures)
        if len(self._entries) >= MAX_ENTRIES:
            return max(self._entries, key=lambda name: self._entries[name].failures)
        return None
