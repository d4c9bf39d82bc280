"""Who loses KV cache to whom: nobody loses any to a scope, or key, that has more.

With LRU alone, one API key with many prompts would evict the prefixes that other keys' next turns continue. And if
a request that finds no room got none, one key's open requests would keep all others out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

MARGIN = 1.25
"""How much more than an asker an owner must hold to lose it: where two need about the same, the one that has it works
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


@dataclass(frozen=True, slots=True)
class Holding:
    """What one open request holds, in any unit. `order` rises from the oldest request to the youngest; `fixed`: nothing
    may be taken from it."""

    owner: Hashable
    size: int
    order: int
    fixed: bool = False


def gives_way(held: Sequence[Holding], asker: Holding) -> Holding | None:
    """Which of `held`, in which the asker is with what it asks for, has to give up what it holds.

    It is the youngest request of the owner that holds most, the asker's owner counting `MARGIN` times. So nobody loses
    anything to an owner that then holds as much, and of an owner's requests the oldest is the last to lose. Where it is
    the asker, the asker must wait; None where all are fixed.
    """
    sizes = dict.fromkeys((one.owner for one in held), 0.0)
    for one in held:
        sizes[one.owner] += one.size * (MARGIN if one.owner == asker.owner else 1)
    loose = [one for one in held if one.size and not one.fixed]
    return max(loose, key=lambda one: (sizes[one.owner], one.owner == asker.owner, one.order), default=None)
