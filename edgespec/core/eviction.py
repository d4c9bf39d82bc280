"""Who loses KV cache to whom: nobody loses any to a scope, or key, that has more.

With LRU alone, one API key with many prompts would evict the prefixes that other keys' next turns continue. And if
a request that finds no room got none, one key's open requests would keep all others out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

MARGIN = 1.25
"""How much more than an asker an owner must hold to lose it: if two need about the same, the one that has it works
on. Taking it back and forth would only read the same tokens again."""
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
    for prefix in kept:
        sizes[prefix.scope] += prefix.size

    def order(index: int) -> tuple[int, int, float]:
        prefix = kept[index]
        if not prefix.scope or not prefix.size:
            return 0, 0, prefix.used_at
        if now - prefix.used_at > MAX_IDLE_S:
            return 1, 0, prefix.used_at
        return 2, -sizes[prefix.scope], prefix.used_at

    return sorted(range(len(kept)), key=order)


@dataclass(frozen=True, slots=True)
class Holding:
    """What one open request holds, in any unit. `order` rises from the oldest request to the youngest; `fixed`: nothing
    may be taken from it."""

    owner: Hashable
    size: int
    order: int
    fixed: bool = False


def gives_way(holdings: Sequence[Holding], asker: Holding) -> Holding | None:
    """Which of these, in which the asker is with what it asks for, has to give up what it holds.

    It is the youngest request of the owner that holds most, the asker's owner counting `MARGIN` times. So nobody loses
    anything to an owner that then holds as much, and of an owner's requests the oldest is the last to lose. If it is
    the asker, the asker must wait; None if all are fixed.
    """
    sizes: Counter[Hashable] = Counter()
    for holding in holdings:
        sizes[holding.owner] += holding.size

    def weight(holding: Holding) -> tuple[float, bool, int]:
        is_askers = holding.owner == asker.owner
        size = sizes[holding.owner] * (MARGIN if is_askers else 1)
        return size, is_askers, holding.order

    loose = [holding for holding in holdings if holding.size and not holding.fixed]
    return max(loose, key=weight, default=None)
