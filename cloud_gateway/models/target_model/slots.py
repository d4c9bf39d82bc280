"""What every engine needs, without tensors: the table of KV slots, the cut of a round into passes, what is read from
logits that numpy has, and the verdict of the self-test.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgespec.core.errors import ModelError
from edgespec.core.eviction import Kept, first_to_go
from edgespec.core.numbers import common_prefix


@dataclass(frozen=True, slots=True)
class Claim:
    """The slot of a prompt; its first `reused` tokens are those of the prompt.

    If `donor` is another slot, their entries must still be copied from it.
    """

    slot: int
    reused: int
    donor: int
    evicted: Sequence[int] = ()
    """Free slots whose entries were dropped for it: nothing of them may stay in memory."""


@dataclass(slots=True)
class _Slot:
    tokens: list[int] = field(default_factory=list)
    """Tokens whose keys and values are in the slot, also after it was closed."""
    scope: bytes = b""
    """Only a prompt of the same scope may reuse the tokens, and none if it is empty."""
    busy: bool = False
    room: int = 0
    """Entries that it may take; of a free slot those that it still does."""
    used_at: float = float("-inf")

    def reusable(self, tokens: Sequence[int], scope: bytes) -> int:
        """Number of a prompt's first tokens that it may reuse from this slot."""
        if scope and scope == self.scope:
            return common_prefix(self.tokens, list(tokens))
        return 0


class SlotTable:
    """All slots; a new prompt reuses the longest beginning of it that is held for its scope.

    The rooms of all slots together never exceed the capacity: what free slots hold is dropped for new prompts.
    """

    def __init__(
        self,
        count: int,
        *,
        capacity: int = sys.maxsize,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`capacity`: entries of all slots together."""
        self._slots = [_Slot() for _ in range(count)]
        self._capacity = capacity
        self._clock = clock

    def claim(self, tokens: Sequence[int], scope: bytes = b"", room: int = 0) -> Claim:
        """Claims a free slot with so much room for a prompt, 0 for an equal share of the capacity.

        All tokens but the last one can be reused.

        A free slot of whose tokens at least half are the prompt's beginning is continued. Otherwise the free slot
        that `first_to_go` returns is overwritten, and the beginning is copied from the slot of the same scope that
        holds most of it, busy or not. Raises IndexError when no slot is free, or the busy ones leave too little room.
        """
        room = room or self._capacity // len(self._slots)
        busy = [slot.room for slot in self._slots if slot.busy]
        if len(busy) == len(self._slots):
            raise IndexError("every slot of the target is taken")
        if room + sum(busy) > self._capacity:
            raise IndexError(f"the KV cache has no room for {room} entries more")

        reusable = [slot.reusable(tokens[:-1], scope) for slot in self._slots]
        donor = self._best_donor(reusable)
        slot = donor
        if self._slots[donor].busy or not 0 < len(self._slots[donor].tokens) <= 2 * reusable[donor]:
            slot = next(i for i in self._order(scope) if not self._slots[i].busy)

        self._slots[slot].room = room
        evicted = self._evict(slot, donor, scope)
        if donor in evicted:  # another slot may hold less of it
            for i in evicted:
                reusable[i] = 0
            donor = self._best_donor(reusable)

        reused = reusable[donor]
        if not reused:
            donor = slot
        self._slots[slot] = _Slot(list(tokens[:reused]), scope, True, room, self._clock())
        return Claim(slot, reused, donor, evicted)

    def resize(self, slot: int, room: int) -> Sequence[int]:
        """Gives a busy slot so much room; returns the free slots whose entries were dropped for it.

        Raises IndexError if the busy ones leave too little.
        """
        resized = self._slots[slot]
        others = sum(other.room for other in self._slots if other.busy and other is not resized)
        if room + others > self._capacity:
            raise IndexError(f"the KV cache has no room for {room} entries in one slot")

        resized.room = room
        return self._evict(slot, slot, resized.scope)

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """Notes tokens whose keys and values were added."""
        self._slots[slot].tokens.extend(tokens)

    def release(self, slot: int, room: int | None = None) -> None:
        """Frees the slot, which still takes `room` entries (by default its tokens), for a later claim to reuse;
        without a scope nobody may, and it holds no token any more."""
        freed = self._slots[slot]
        if not freed.scope:
            freed.tokens = []
        if room is None:
            room = len(freed.tokens)

        freed.busy = False
        freed.used_at = self._clock()
        freed.room = room

    def held(self, slot: int) -> Sequence[int]:
        """Tokens whose keys and values are in the slot."""
        return self._slots[slot].tokens

    def _best_donor(self, reusable: Sequence[int]) -> int:
        """The slot from which a prompt may reuse most tokens, a free one first."""
        return max(range(len(reusable)), key=lambda i: (reusable[i], not self._slots[i].busy))

    def _evict(self, slot: int, donor: int, scope: bytes) -> list[int]:
        """Empties free slots until the rooms of all fit, the donor last."""
        evicted: list[int] = []
        excess = sum(other.room for other in self._slots) - self._capacity
        for i in sorted(self._order(scope), key=lambda i: i == donor):
            other = self._slots[i]
            if excess > 0 and i != slot and not other.busy and other.room:
                excess -= other.room
                self._slots[i] = _Slot()
                evicted.append(i)

        return evicted

    def _order(self, scope: bytes) -> list[int]:
        """Slots in the order in which they give way, given that `scope` then has one slot more."""
        now = self._clock()
        kept = [Kept(slot.scope, int(slot.busy or bool(slot.tokens)), slot.used_at) for slot in self._slots]
        kept.append(Kept(scope, 1, now))
        return [i for i in first_to_go(kept, now) if i < len(self._slots)]


SELF_TEST_LIMIT = 0.5
"""Maximum of the median difference between a tree's logits and those of its paths alone, in standard deviations."""


def check_self_test(errors: Sequence[float], limit: float = SELF_TEST_LIMIT) -> None:
    """Raises ModelError if a tree's rows differ by these from those of its paths alone, in standard deviations.

    An architecture that ignores the mask, the sequences or the positions would silently change completions. The median
    counts: on some inputs a model in bfloat16 is ill-conditioned, and a row is far off by rounding alone.
    """
    if not all(map(math.isfinite, errors)) or statistics.median(errors) > limit:
        raise ModelError(
            "This model's logits for a tree differ from those of its paths alone, so it cannot verify trees; "
            "choose another architecture."
        )


MIN_LOGIT = -200.0
"""Lower bound of logits relative to the best one, in nats; minus infinity would make 0 · inf in the entropy."""
MAX_DIRECT_LOGIT = 60.0
MIN_DIRECT_LOGIT = -40.0
"""Best logits between which `exp` of a row neither overflows float32 nor loses what counts, so that the best one need
not be subtracted from the others first."""
DOT_LENGTH = 8192
"""Numbers of one dot product: OpenBLAS shares longer ones out over threads, which wait for the target's."""


def argmax_on_host(scores: NDArray[np.float32]) -> list[int]:
    """The first of the largest scores of each row, `scores`: [n, vocab_size]."""
    return [int(row.argmax()) for row in scores]


def entropy_on_host(scores: NDArray[np.float32]) -> float:
    """Nats of the distribution with these logits, [vocab_size]: slow and obvious, and for any float32."""
    below = np.maximum(scores - scores.max(), MIN_LOGIT)
    weights = np.exp(below)
    total = float(weights.sum())

    # H = ln Z - E[l], with l the logits below their maximum.
    return math.log(total) - float(np.einsum("i,i", weights, below)) / total


class HostEntropy:
    """`entropy_on_host` in about 0.6 of its time (docs/results/rounds.md), for the rows of one target.

    It keeps the memory of the weights: new pages for each row took longer than the sums. It uses the best token that
    choosing has found, and passes over the row once less. To take only the likeliest tokens saves nothing: on real rows
    those within 14 nats of the best are a fifth of the vocabulary or more, and leave out 0.014 nats.
    """

    def __init__(self) -> None:
        self._weights = np.empty(0, np.float32)
        self._ones = np.ones(DOT_LENGTH, np.float32)

    def __call__(self, scores: NDArray[np.float32], best: int) -> float:
        """Nats of the distribution with these logits, [vocab_size]; `best`: the index of the largest."""
        if not MIN_DIRECT_LOGIT < scores[best] < MAX_DIRECT_LOGIT:
            return entropy_on_host(scores)

        if len(self._weights) < len(scores):
            self._weights = np.empty(len(scores), np.float32)

        weights = self._weights[: len(scores)]
        np.exp(scores, out=weights)
        whole = len(weights) // DOT_LENGTH * DOT_LENGTH
        rest = weights[whole:]
        total = _dots(weights[:whole], self._ones) + float(np.vecdot(rest, self._ones[: len(rest)]))
        with np.errstate(invalid="ignore"):  # a logit of minus infinity makes 0 · inf
            weighted = _dots(weights[:whole], scores[:whole].reshape(-1, DOT_LENGTH))
            mean = (weighted + float(np.vecdot(rest, scores[whole:]))) / total

        if math.isfinite(mean):
            return math.log(total) - mean
        return entropy_on_host(scores)


def _dots(weights: NDArray[np.float32], factors: NDArray[np.float32]) -> float:
    """The sum of products, DOT_LENGTH of them at once."""
    rows = weights.reshape(-1, DOT_LENGTH)
    return float(np.vecdot(rows, factors).sum())


def groups(sizes: Sequence[tuple[int, int]], max_rows: int, max_forks: int) -> list[list[int]]:
    """Cuts a round into passes of at most so many rows and forks, in order; `sizes`: rows and forks of each tree."""
    passes: list[list[int]] = []
    used_rows = 0
    used_forks = 0
    for index, (rows, forks) in enumerate(sizes):
        used_rows += rows
        used_forks += forks
        if not passes or used_rows > max_rows or used_forks > max_forks:
            passes.append([])
            used_rows = rows
            used_forks = forks
        passes[-1].append(index)

    return passes
