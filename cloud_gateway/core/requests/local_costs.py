"""Costs of the gateway's own draft for a policy: its step, its backlog, and how much is read at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from cloud_gateway.core.policies.policy import Costs, Points, at

MIN_BATCH = 4
"""Tokens of a catch-up batch, however fast the target is: a batch of one costs about as much as one of four."""
WIDTHS = (1, 2, 4, 8, 16)
"""Leaves of a request in a step of which a policy is given the time."""
MIN_TOKEN_S = 1e-6
"""Seconds per token of a batch, where none has been measured."""


def catch_up_batch(verify_s: Callable[[int], float], token_s: float) -> int:
    """Tokens of one catch-up batch: as many as take about one target step, so that no gap is much longer."""
    return max(MIN_BATCH, int(verify_s(1) / max(token_s, MIN_TOKEN_S)))


def draft_costs(
    verify_s: Callable[[int], float], step_s: float, backlog: int, token_s: float, leaves: int, points: Points = ()
) -> Costs:
    """`backlog`: committed tokens that the draft has not read, besides the one that its next step evaluates anyway.
    `points`: seconds of a step by its leaves, where measured."""
    batch_s = catch_up_batch(verify_s, token_s) * token_s
    return Costs(verify_s, step_s, backlog * token_s, batch_s, leaves, points, token_s)


def shared(step_s: float, points: Points, sharing: float, leaves: int) -> tuple[float, Points]:
    """Seconds of a step for each of so many requests whose leaves share it: over one leaf of each, and over up to
    `leaves`. Beyond the most that `points` has, time grows with the leaves."""
    if not points:
        return step_s / sharing, ()
    widest, slowest_s = points[-1]

    def share_s(each: int) -> float:
        rows = each * sharing
        whole_s = slowest_s * rows / widest if rows > widest else at(points, round(rows))
        return whole_s / sharing

    return share_s(1), tuple(
        (each, share_s(each)) for each in sorted({*(one for one in WIDTHS if one < leaves), leaves})
    )


def shared_rows(verify_s: Callable[[int], float], sharing: int, beside: int, most: int) -> tuple[float, ...]:
    """What each further candidate, up to `most`, of each of so many requests adds to a pass, divided by their number;
    `beside`: rows of all others. Empty for one alone."""
    first = beside + sharing
    passes = [verify_s(rows) for rows in range(first, first + sharing * (most + 1), sharing)] if sharing > 1 else []
    return tuple([(more - less) / sharing for less, more in pairwise(passes)])
