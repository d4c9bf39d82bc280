"""The table of KV slots: the tokens in each, and the slot for a new prompt. No tensors: any engine can use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edgespec.core.eviction import Kept, first_to_go


@dataclass(frozen=True, slots=True)
class Claim:
    """The slot of a prompt; its first `reused` tokens are those of the prompt.

    Where `donor` is another slot, their entries must still be copied from it.
    """

    slot: int
    reused: int
    donor: int


@dataclass(slots=True)
class _Slot:
    tokens: list[int] = field(default_factory=list)
    """Tokens whose keys and values are in the slot, also after it was closed."""
    scope: bytes = b""
    """Only a prompt of the same scope may reuse the tokens, and none where it is empty."""
    busy: bool = False
    used_at: float = float("-inf")

    def reusable(self, tokens: Sequence[int], scope: bytes) -> int:
        """Number of a prompt's first tokens that it may reuse from this slot."""
        return common_prefix(self.tokens, tokens) if scope and scope == self.scope else 0


class SlotTable:
    """All slots; a new prompt reuses the longest beginning of it that is held for its scope."""

    def __init__(self, count: int, *, reuse: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        """`reuse`: whether a prompt may reuse tokens of an earlier one."""
        self._slots = [_Slot() for _ in range(count)]
        self._reuse, self._clock = reuse, clock

    def claim(self, tokens: Sequence[int], scope: bytes = b"") -> Claim:
        """Claims a free slot for a prompt. All its tokens but the last one can be reused.

        A free slot of whose tokens at least half are the prompt's beginning is continued. Otherwise the free slot
        that `first_to_go` returns is overwritten, and the beginning is copied from the slot of the same scope that
        holds most of it, busy or not. Raises IndexError when no slot is free.
        """
        if all(slot.busy for slot in self._slots):
            raise IndexError("every slot of the target is taken")
        shared = [slot.reusable(tokens[:-1], scope) if self._reuse else 0 for slot in self._slots]
        donor = max(range(len(shared)), key=lambda i: (shared[i], not self._slots[i].busy))
        reused = shared[donor]
        if not self._slots[donor].busy and 0 < len(self._slots[donor].tokens) <= 2 * reused:
            slot = donor
        else:
            slot = self._victim(scope)
        self._slots[slot] = _Slot(list(tokens[:reused]), scope, True, self._clock())
        return Claim(slot, reused, donor if reused else slot)

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """Notes tokens whose keys and values were added."""
        self._slots[slot].tokens.extend(tokens)

    def release(self, slot: int) -> None:
        """Frees the slot; its tokens may be reused by a later claim."""
        self._slots[slot].busy = False
        self._slots[slot].used_at = self._clock()

    def held(self, slot: int) -> Sequence[int]:
        """Tokens whose keys and values are in the slot."""
        return self._slots[slot].tokens

    def _victim(self, scope: bytes) -> int:
        """The free slot to overwrite, given that `scope` then has one slot more."""
        kept = [Kept(slot.scope, int(slot.busy or bool(slot.tokens)), slot.used_at) for slot in self._slots]
        now = self._clock()
        order = first_to_go([*kept, Kept(scope, 1, now)], now)
        return next(i for i in order if i < len(kept) and not self._slots[i].busy)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    limit = min(len(a), len(b))
    return next((i for i in range(limit) if a[i] != b[i]), limit)
