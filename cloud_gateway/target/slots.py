"""Which KV slot holds which tokens, and which one a new prompt gets; no tensors, so any engine can use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Claim:
    """A prompt gets `slot`, whose first `reused` tokens are the prompt's own.

    Where `donor` is another slot, those entries are there and have still to be copied.
    """

    slot: int
    reused: int
    donor: int


@dataclass(slots=True)
class _Slot:
    tokens: list[int] = field(default_factory=list)
    """Tokens whose keys and values are there, also after the slot was closed."""
    busy: bool = False
    used: int = 0
    """Place in the order of use."""


class SlotTable:
    """Slots by what they hold: a new prompt continues the longest known beginning of it."""

    def __init__(self, count: int, *, reuse: bool = True) -> None:
        """`reuse`: whether a prompt may continue what an earlier one left."""
        self._slots = [_Slot() for _ in range(count)]
        self._reuse = reuse
        self._uses = 0

    def claim(self, tokens: Sequence[int]) -> Claim:
        """Claims a free slot for a prompt. All its tokens but the last one can be reused.

        A free slot that holds mostly the prompt's own beginning is continued. Otherwise the least recently used free
        slot gives way, and what is known of the beginning is copied from the slot that has most of it, busy or not.
        Raises IndexError when no slot is free.
        """
        free = [i for i, slot in enumerate(self._slots) if not slot.busy]
        if not free:
            raise IndexError("every slot of the target is taken")
        shared = [common_prefix(slot.tokens, tokens[:-1]) if self._reuse else 0 for slot in self._slots]
        donor = max(range(len(shared)), key=lambda i: (shared[i], not self._slots[i].busy))
        reused = shared[donor]
        if not self._slots[donor].busy and 0 < len(self._slots[donor].tokens) <= 2 * reused:
            slot = donor
        else:
            slot = min(free, key=lambda i: self._slots[i].used)
        self._slots[slot] = _Slot(list(tokens[:reused]), busy=True)
        self._touch(slot)
        return Claim(slot, reused, donor if reused else slot)

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """Keys and values of these tokens were added."""
        self._slots[slot].tokens.extend(tokens)

    def release(self, slot: int) -> None:
        """Frees the slot; what it holds may serve a later claim."""
        self._slots[slot].busy = False
        self._touch(slot)

    def held(self, slot: int) -> Sequence[int]:
        """Tokens whose keys and values the slot has."""
        return self._slots[slot].tokens

    def _touch(self, slot: int) -> None:
        self._uses += 1
        self._slots[slot].used = self._uses


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    limit = min(len(a), len(b))
    return next((i for i in range(limit) if a[i] != b[i]), limit)
