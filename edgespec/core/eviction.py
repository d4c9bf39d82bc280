"""Which kept prefix is dropped first: no scope loses its prefixes to another one that keeps more.

By recency alone, one API key with many prompts would drop what every other key's next turn could continue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

MAX_IDLE_S = 600.0
"""A prefix unused for so long gives way first, whosever it is: a conversation rarely goes on after ten minutes."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One prefix: its scope (empty: serves nobody), its size in any unit, and when it was last used."""

    scope: bytes
    size: int
    used_at: float


def first_to_go(kept: Sequence[Kept], now: float) -> list[int]:
    """Indices of `kept` in the order of eviction: useless ones, idle ones, then of the scope that keeps most."""
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
