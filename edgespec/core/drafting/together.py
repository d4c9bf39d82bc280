"""What of several requests the draft model computes next: leaves that bring most in a second, or a batch of a prompt.

A leaf is worth the probability that its path is the target's, and less if what it brings arrives after the gateway's
next pass has begun. A lone request gets the leaves that it would choose by itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

from edgespec.core.drafting.algorithm2 import Drafting
from edgespec.core.drafting.best_first import paced
from edgespec.core.drafting.settings import PREFILL_BATCH
from edgespec.core.drafting.tree import Node

LATE = 0.5
"""Worth of a leaf that misses the next pass, relative to one that does not: it counts from the pass after that on."""

Part = tuple[Drafting, Sequence[Node]]
"""A request and its leaves, best first."""


def shared(
    parts: Iterable[Part], most: int, step_s: Callable[[int], float] | None = None, now: float = 0.0, rtt_s: float = 0.0
) -> list[Part]:
    """At most `most` leaves of these. With `step_s`, the seconds of a pass by its leaves, as many as maximise the
    progress that is expected in a second; without it all that there are."""
    end = now + (step_s(1) if step_s else 0.0)
    offers = (_offers(drafting, leaves, end, rtt_s) for drafting, leaves in parts)
    ranked = list(islice(heapq.merge(*offers, key=itemgetter(0), reverse=True), most))
    count = paced((worth for worth, *_ in ranked), step_s) if step_s else len(ranked)
    taken = dict[Drafting, list[Node]]()
    for _, drafting, leaf in ranked[:count]:
        taken.setdefault(drafting, []).append(leaf)
    return list(taken.items())


def _offers(drafting: Drafting, leaves: Sequence[Node], end: float, rtt_s: float) -> list[tuple[float, Drafting, Node]]:
    weight = 1.0 if drafting.rhythm.in_time(end, rtt_s) else LATE
    return [(weight * drafting.chance(leaf), drafting, leaf) for leaf in leaves]


MAX_BATCH_S = 0.1
"""Of one batch of catch-up, as the latest was measured: for so long other requests and commits wait."""
FIRST_BATCH = 16
"""Tokens of the first batch, which measures; 75 ms with the slowest format of the demo's draft."""


@dataclass(slots=True)
class Reading:
    """Reading of prompts beside drafting: in batches that take a tenth of a second, in half of the model's time."""

    most: int = PREFILL_BATCH
    """Most tokens of a batch."""
    _token_s: float = 0.0
    """Seconds to read a token in the latest batch; 0 before the first."""
    _drafting_s: float = 0.0
    """Model time that drafting gets before the next batch."""

    @property
    def batch(self) -> int:
        """Tokens of a batch, and the most pending ones that a draft step evaluates with its leaves."""
        return max(min(int(MAX_BATCH_S / self._token_s), self.most), 1) if self._token_s else FIRST_BATCH

    @property
    def due(self) -> bool:
        """Whether drafting has had as much time as the latest batch."""
        return self._drafting_s <= 0

    def read(self, tokens: int, seconds: float) -> None:
        """A batch has been read."""
        self._token_s, self._drafting_s = seconds / max(tokens, 1), seconds

    def drafted(self, seconds: float) -> None:
        """A draft step has ended."""
        self._drafting_s -= seconds
