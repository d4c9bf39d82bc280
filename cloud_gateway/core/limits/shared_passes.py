"""Who shares a pass, and what it costs each: requests share passes of the local draft and of the target.

1. A draft pass costs each request the less the more share it. So all are asked as if all that decode drafted, and those
   that want to draft are asked again at the price of their own number, until nobody leaves (`agree`).
2. A pass of the target waits for requests that draft, so that one pass verifies for all (`Hold`).

The prices are in `Company`, which each request's own costs are completed with. The alternative, one policy for all
requests together, was not taken: a request's decisions would then depend on what its neighbours are, and a trace of one
request could not be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from cloud_gateway.core.policies.policy import WIDTHS, Costs, Points, at

T = TypeVar("T")


class Company(Struct, frozen=True):
    """The requests that run at once, as far as they decide what a step costs one of them."""

    in_slots: int
    decoding: int
    """Requests whose policies are asked: they wait for each other's rows and drafts."""
    drafters: int
    """Requests that are expected to share the next pass of the local draft."""
    rows_s: tuple[float, ...]
    """Seconds that a first, second, … candidate of each drafter adds to the target's pass, divided by their number."""
    read_s: float
    """Seconds since the start in which prompts were read between passes."""
    probe: tuple[int, float] | None
    """A number of rows to try, and the least seconds that a pass over them can take."""

    def costs(self, alone: Costs, other_rows: float) -> Costs:
        """`alone`: a request's own costs; `other_rows`: rows that the others are expected to put into its pass."""
        return replace(
            alone,
            other_rows=round(other_rows),
            sharers=self.decoding - 1,
            waiting=self.in_slots - self.decoding,
            together=self.drafters - 1,
            rows_s=self.rows_s,
            paused_s=self.read_s,
            probe=self.probe,
        )


def agree(requests: Sequence[T], sharing: int, ask: Callable[[Sequence[T], int], Sequence[T]]) -> None:
    """Asks requests at the price of a pass that so many share, until as many draft as the price assumes, or none.

    `ask(requests, sharing)` returns those that draft at the price of `sharing` requests.
    """
    asked = requests
    while asked:
        drafters = ask(asked, sharing)
        if not drafters or len(drafters) == sharing:
            return

        asked = drafters
        sharing = len(drafters)


def in_passes(parts: Sequence[T], rows_of: Callable[[T], int], most_rows: int) -> Iterator[Sequence[T]]:
    """The parts of one draft pass after the other, in order, with at most so many rows in each; a larger part has a
    pass of its own."""
    group: list[T] = []
    rows = 0
    for part in parts:
        part_rows = rows_of(part)
        if group and rows + part_rows > most_rows:
            yield group
            group = []
            rows = 0

        group.append(part)
        rows += part_rows

    if group:
        yield group


class Hold:
    """Whether a pass of the target waits for requests that draft, so that one pass verifies for all."""

    def __init__(self) -> None:
        self._since: float | None = None
        """When the pass that waits now was first ready."""

    def holds(self, ready: int, drafting: int, now: float, pass_s: float) -> bool:
        """`ready` requests wait while at least as many draft, and at most as long as a pass takes."""
        since = now if self._since is None else self._since
        in_time = now - since <= pass_s
        holds = 0 < ready <= drafting and in_time

        self._since = since if holds else None
        return holds


def shared_step(step_s: float, points: Points, sharing: float, leaves: int) -> tuple[float, Points]:
    """Seconds of a draft step for each of so many requests whose leaves share it: over one leaf of each, and over up to
    `leaves`. Beyond the most that `points` has, time grows with the leaves."""
    if not points:
        return step_s / sharing, ()

    widest, slowest_s = points[-1]

    def seconds_of_each(leaves_of_each: int) -> float:
        rows = leaves_of_each * sharing
        if rows > widest:
            whole_s = slowest_s * rows / widest
        else:
            whole_s = at(points, round(rows))
        return whole_s / sharing

    widths = {width for width in WIDTHS if width < leaves}
    widths.add(leaves)
    curve = tuple((width, seconds_of_each(width)) for width in sorted(widths))
    return seconds_of_each(1), curve


def shared_rows(verify_s: Callable[[int], float], sharing: int, beside: int, most: int) -> tuple[float, ...]:
    """What each further candidate, up to `most`, of each of so many requests adds to a pass, divided by their number;
    `beside`: rows of all others. Empty for one alone."""
    if sharing <= 1:
        return ()

    roots = beside + sharing
    rows_of_passes = range(roots, roots + sharing * (most + 1), sharing)
    passes_s = [verify_s(rows) for rows in rows_of_passes]
    return tuple([(longer_s - shorter_s) / sharing for shorter_s, longer_s in pairwise(passes_s)])
