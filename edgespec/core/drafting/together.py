"""What of several requests the draft model computes next: leaves that bring most in a second, or a batch of a prompt.

A leaf is worth the probability that its path is the target's, and less if what it brings arrives after the gateway's
next pass has begun. A lone request gets the leaves that it would choose by itself. How many leaves pay off follows from
the times of a step, which the worker also reports to its gateway.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

from edgespec.core.drafting.algorithm2 import Drafting
from edgespec.core.drafting.best_first import paced
from edgespec.core.drafting.settings import PREFILL_BATCH
from edgespec.core.drafting.tree import Node
from edgespec.core.numbers import interpolate
from edgespec.core.protocol.messages import (
    MAX_LEAVES,
    MAX_MICROS,
    MAX_POINTS,
    StepTimes,
)

LATE = 0.5
"""Worth of a leaf that misses the next pass, relative to one that does not: it counts from the pass after that on."""

Part = tuple[Drafting, Sequence[Node]]
"""A request and its leaves, best first."""


def shared(
    parts: Iterable[Part],
    max_leaves: int,
    step_s: Callable[[int], float] | None = None,
    now: float = 0.0,
    rtt_s: float = 0.0,
) -> list[Part]:
    """At most `max_leaves` of these. With `step_s`, the seconds of a pass by its leaves, as many as maximise the
    progress that is expected in a second; without it all that there are."""
    end = now
    if step_s:
        end += step_s(1)
    offers = (_offers(drafting, leaves, end, rtt_s) for drafting, leaves in parts)
    ranked = list(islice(heapq.merge(*offers, key=itemgetter(0), reverse=True), max_leaves))
    if step_s:
        ranked = ranked[: paced(map(itemgetter(0), ranked), step_s)]

    taken: dict[Drafting, list[Node]] = {}
    for _, drafting, leaf in ranked:
        taken.setdefault(drafting, []).append(leaf)

    return list(taken.items())


def _offers(
    drafting: Drafting,
    leaves: Sequence[Node],
    end: float,
    rtt_s: float,
) -> list[tuple[float, Drafting, Node]]:
    """The worth of each leaf, with the leaf."""
    weight = LATE
    if drafting.rhythm.in_time(end, rtt_s):
        weight = 1.0
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
        if self._token_s:
            return max(min(int(MAX_BATCH_S / self._token_s), self.most), 1)
        return FIRST_BATCH

    @property
    def due(self) -> bool:
        """Whether drafting has had as much time as the latest batch."""
        return self._drafting_s <= 0

    def read(self, tokens: int, seconds: float) -> None:
        """A batch has been read, unless there was nothing to evaluate."""
        if tokens:
            self._token_s = seconds / tokens
            self._drafting_s = seconds

    def drafted(self, seconds: float) -> None:
        """A draft step has ended."""
        self._drafting_s -= seconds


REMEMBERED = 8
"""Steps in the mean. A mean, because a starved worker has most steps on time and a few that take ten times as long."""
MAX_FACTOR = 100.0
"""Greatest factor of one step, so that one that was suspended does not hide the next ones."""
CHANGE = 0.2
"""Relative change from which the gateway is sent the times again."""
REPORT_EVERY_S = 0.1
"""Shortest time between two reports."""


class DraftCurve:
    """Callable: seconds of a draft step over so many leaves: a curve, measured or assumed, times how much longer the
    latest steps took.

    Wall clock time, with every wait for a core: a worker whose owner uses the machine reports it with its next step.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        """`measured`: leaves -> seconds, 1 leaf among them, at most `MAX_POINTS`."""
        if 1 not in measured or len(measured) > MAX_POINTS or max(measured) > MAX_LEAVES:
            raise ValueError(f"a curve has a time for 1 leaf and at most {MAX_POINTS} points up to {MAX_LEAVES} leaves")
        self._measured = dict(sorted(measured.items()))
        self._factors: deque[float] = deque(maxlen=REMEMBERED)
        self._factor = 1.0
        self._reported = 1.0
        self._reported_at = float("-inf")

    def __call__(self, leaves: int) -> float:
        """Seconds expected of a step over this many leaves."""
        return interpolate(self._measured, leaves) * self._factor

    def sample(self, leaves: int, seconds: float) -> None:
        """One step over this many leaves has ended."""
        factor = seconds / interpolate(self._measured, leaves)
        self._factors.append(min(max(factor, 1 / MAX_FACTOR), MAX_FACTOR))
        self._factor = sum(self._factors) / len(self._factors)

    def report(self) -> StepTimes:
        """The times as they are now."""
        times: list[int] = []
        for leaves in self._measured:
            micros = round(self(leaves) * 1e6)
            times.append(min(max(micros, 1), MAX_MICROS))

        return StepTimes(list(self._measured), times)

    def changed(self, now: float) -> StepTimes | None:
        """A report if the times have changed since the latest one, else None."""
        ratio = self._factor / self._reported
        if 1 / (1 + CHANGE) <= ratio <= 1 + CHANGE or now < self._reported_at + REPORT_EVERY_S:
            return None

        self._reported = self._factor
        self._reported_at = now
        return self.report()
