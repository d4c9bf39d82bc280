"""Which leaves of several requests share the next pass of the draft model: those that bring most in a second.

A leaf is worth the probability that its path is the target's, and less if what it brings arrives after the gateway's
next pass has begun. A lone request gets the leaves that it would choose by itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import itemgetter

from edgespec.core.drafting.algorithm2 import Drafting
from edgespec.core.drafting.best_first import paced
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
