"""Eviction order of cached prefixes: a scope never loses one to another scope that has more.

With LRU alone, one API key with many prompts would evict the prefixes that other keys' next turns continue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

MAX_IDLE_S = 600.0
"""Prefixes unused for longer are evicted first, in any scope: a conversation rarely continues after ten minutes."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One prefix: its scope (empty: not shared), its size in any unit, and when it was last used."""

    scope: bytes
    size: int
    used_at: float


def first_to_go(kept: Sequence[Kept], now: float) -> list[int]:
    """Indices of `kept` in the order of eviction: without a scope, idle, then from the scope that has most."""
    sizes: Counter[bytes] = Counter()
    for one in kept:
        sizes[one.scope] += one.size

    def order(index: int) -> tuple[int, int, float]:
        one = kept[index]
        if not one.scope or not one.size:
            return 0, 0, one.used_at
        if now - one.used_at > MAX_IDLE_S:
            return 1, 0, one.used_at
        return 2, -sizes[one.scope], one.used_at

    return sorted(range(len(kept)), key=order)
