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

    Where `donor` is another slot, their entries must still be copied from it.
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
    """Only a prompt of the same scope may reuse the tokens, and none where it is empty."""
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
        if all(slot.busy for slot in self._slots):
            raise IndexError("every slot of the target is taken")
        if room + sum(slot.room for slot in self._slots if slot.busy) > self._capacity:
            raise IndexError(f"the KV cache has no room for {room} entries more")

        shared = [slot.reusable(tokens[:-1], scope) for slot in self._slots]
        donor, reused = self._most(shared)
        if not self._slots[donor].busy and 0 < len(self._slots[donor].tokens) <= 2 * reused:
            slot = donor
        else:
            slot = next(i for i in self._order(scope) if not self._slots[i].busy)
        self._slots[slot].room = room
        evicted = self._evict(slot, donor, scope)
        if donor in evicted:  # another slot may hold less of it
            donor, reused = self._most([0 if i in evicted else found for i, found in enumerate(shared)])
        self._slots[slot] = _Slot(list(tokens[:reused]), scope, True, room, self._clock())
        return Claim(slot, reused, donor if reused else slot, evicted)

    def resize(self, slot: int, room: int) -> Sequence[int]:
        """Gives a busy slot so much room; returns the free slots whose entries were dropped for it.

        Raises IndexError where the busy ones leave too little.
        """
        if room + sum(one.room for i, one in enumerate(self._slots) if one.busy and i != slot) > self._capacity:
            raise IndexError(f"the KV cache has no room for {room} entries in one slot")
        self._slots[slot].room = room
        return self._evict(slot, slot, self._slots[slot].scope)

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """Notes tokens whose keys and values were added."""
        self._slots[slot].tokens.extend(tokens)

    def release(self, slot: int, room: int | None = None) -> None:
        """Frees the slot, which still takes `room` entries (its tokens where not given), for a later claim to reuse;
        without a scope nobody may, and it holds no token any more."""
        freed = self._slots[slot]
        if not freed.scope:
            freed.tokens = []
        freed.busy, freed.used_at, freed.room = False, self._clock(), len(freed.tokens) if room is None else room

    def held(self, slot: int) -> Sequence[int]:
        """Tokens whose keys and values are in the slot."""
        return self._slots[slot].tokens

    def _most(self, shared: Sequence[int]) -> tuple[int, int]:
        """The slot that shares most with a prompt, a free one first, and how many tokens these are."""
        donor = max(range(len(shared)), key=lambda i: (shared[i], not self._slots[i].busy))
        return donor, shared[donor]

    def _evict(self, slot: int, donor: int, scope: bytes) -> list[int]:
        """Empties free slots until the rooms of all fit, the donor last."""
        evicted: list[int] = []
        over = sum(one.room for one in self._slots) - self._capacity
        for i in sorted(self._order(scope), key=lambda i: i == donor):
            if over > 0 and i != slot and not self._slots[i].busy and self._slots[i].room:
                over -= self._slots[i].room
                self._slots[i] = _Slot()
                evicted.append(i)

        return evicted

    def _order(self, scope: bytes) -> list[int]:
        """Slots in the order in which they give way, given that `scope` then has one slot more."""
        kept = [Kept(slot.scope, int(slot.busy or bool(slot.tokens)), slot.used_at) for slot in self._slots]
        now = self._clock()
        return [i for i in first_to_go([*kept, Kept(scope, 1, now)], now) if i < len(kept)]


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
        total = self._sum(weights, None)
        with np.errstate(invalid="ignore"):  # a logit of minus infinity makes 0 · inf
            mean = self._sum(weights, scores) / total

        if math.isfinite(mean):
            return math.log(total) - mean
        return entropy_on_host(scores)

    def _sum(self, weights: NDArray[np.float32], scores: NDArray[np.float32] | None) -> float:
        """The sum of the weights, each times its score if scores are given."""
        whole = len(weights) // DOT_LENGTH * DOT_LENGTH
        rows = weights[:whole].reshape(-1, DOT_LENGTH)
        factors = self._ones if scores is None else scores[:whole].reshape(-1, DOT_LENGTH)
        rest = self._ones[: len(weights) - whole] if scores is None else scores[whole:]
        return float(np.vecdot(rows, factors).sum()) + float(np.vecdot(weights[whole:], rest))


def groups(sizes: Sequence[tuple[int, int]], rows: int, forks: int) -> list[list[int]]:
    """Cuts a round into passes of at most so many rows and forks, in order; `sizes`: rows and forks of each tree."""
    made: list[list[int]] = []
    used = (0, 0)
    for index, (more_rows, more_forks) in enumerate(sizes):
        used = used[0] + more_rows, used[1] + more_forks
        if not made or used[0] > rows or used[1] > forks:
            made.append([])
            used = more_rows, more_forks
        made[-1].append(index)

    return made
