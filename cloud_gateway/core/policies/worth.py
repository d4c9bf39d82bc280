"""What a candidate tree and an action are worth: tokens at their price, less time and passes.

Policy `adaptive` maximises tokens emitted per second. That is the same as choosing at each moment the largest of
`token_s * tokens - seconds`. `token_s` is the seconds per token that the policy attains (Dinkelbach 1967): the best
action has a value near zero, and one of greater value lowers the seconds per token. Values are in seconds.

Requests that share passes wait for each other's rows and drafts, so that the tokens of all count. With n others of the
same pace, a token comes n + 1 times as fast, and is worth that much less of everybody's time.

A table of the best action for every state was the other way. It needs a model of the whole completion; the values here
look one run of levels ahead, and can be computed by hand (docs/adaptive.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from cloud_gateway.core.policies.policy import Costs
from cloud_gateway.core.policies.tree_model import TreeEstimate
from edgespec.core.drafting.tree import Node

MAX_RUN = 16
"""Levels of one run that are looked ahead; deeper ones are too unlikely to matter."""
SPAN = 4
"""Rows over which the time of one more row is a mean, since curves have steps."""


class Prices:
    """What a token is worth and what a pass over so many candidates takes, in seconds."""

    __slots__ = ("_rows_s", "alone", "base", "probe", "shared", "token_s", "verify_s")

    def __init__(self, costs: Costs, token_s: float) -> None:
        """`token_s`: this request's own seconds per token."""
        self.base = 1 + costs.other_rows
        """Rows beside the candidates: the root, and what other requests put into the same pass."""
        self.verify_s: Callable[[int], float] = costs.verify_s
        self.token_s = token_s / (1 + costs.sharers)
        self.shared = costs.sharers > 0
        self._rows_s = costs.rows_s
        self.alone = not costs.rows_s
        self.probe: tuple[int, float] | None = None
        """A number of candidates to try, and the least seconds that their pass can take."""
        if costs.probe is not None:
            rows, min_s = costs.probe
            self.probe = (rows - self.base, min_s)

    def pass_s(self, candidates: int) -> float:
        """Seconds of a pass over so many candidates."""
        return self.verify_s(self.base + candidates)

    def rows_s(self, known: int, limit: int) -> Sequence[float]:
        """Seconds that each candidate's row adds, from the first to the last that a pass may have (`Costs.rows_s`).

        For a request that decodes alone, each row costs what one behind the `known` ones does.
        """
        if self._rows_s:
            return self._rows_s

        more_s = self.pass_s(known + SPAN) - self.pass_s(known)
        return [max(more_s / SPAN, 0.0)] * limit

    def best_count(self, survival: Sequence[float]) -> int:
        """Number of candidates to verify: argmax over n of `token_s * sum(survival[:n]) - pass_s(n)`.

        A number on offer as a probe takes the least that it can.
        """
        # Local names: this loop runs in every decision.
        verify_s = self.verify_s
        token_s = self.token_s
        rows = self.base

        best_count = 0
        best_s = -verify_s(rows)
        gained_s = 0.0
        for count, chance in enumerate(survival, 1):
            gained_s += chance * token_s
            value_s = gained_s - verify_s(rows + count)
            if value_s > best_s:
                best_s = value_s
                best_count = count

        if self.probe is None:
            return best_count

        tried, min_s = self.probe
        if 0 <= tried <= len(survival) and token_s * sum(survival[:tried]) - min_s > best_s:
            return tried

        return best_count


class Level:
    """Value of the candidates that one draft step is expected to find, beside those known already.

    Each pays for its row, and only the likeliest `limit` are verified.
    """

    __slots__ = ("_alone", "_known", "_known_value_s", "_limit", "_rows_s", "_token_s")

    def __init__(self, prices: Prices, survival: Sequence[float], limit: int) -> None:
        """`survival`: of the candidates known, in falling order."""
        self._known = survival[:limit]
        self._limit = limit
        self._token_s = prices.token_s
        self._alone = prices.alone
        self._rows_s = prices.rows_s(len(self._known), limit)
        self._known_value_s = self._best_value_s(self._known)

    def value_s(self, expected: Sequence[float]) -> float:
        """Seconds that the step saves. `expected`: survival of the candidates that it is expected to find."""
        likeliest = sorted([*self._known, *expected], reverse=True)[: self._limit]
        return self._best_value_s(likeliest) - self._known_value_s

    def _best_value_s(self, falling: Sequence[float]) -> float:
        """What the best number of these is worth beyond their rows."""
        token_s = self._token_s
        value_s = 0.0
        best_s = 0.0
        for chance, row_s in zip(falling, self._rows_s):
            value_s += token_s * chance - row_s
            if value_s > best_s:
                best_s = value_s
            elif self._alone:  # all rows cost the same, so that no further one pays
                break

        return best_s


class Run(NamedTuple):
    """A local run: draft passes in a row, of which each adds a level to the candidate tree."""

    leaves: Sequence[Node]
    """Those of its first pass."""
    step_s: float
    """Seconds of a pass."""
    first_s: float
    """What the candidates of the first pass are worth."""
    value_s: float
    """What all its levels are worth beyond their time; 0 if the first one does not pay for its pass."""
    tokens: float
    """Those that its levels are expected to bring."""


def best_run(estimate: TreeEstimate, costs: Costs, prices: Prices, level: Level) -> Run:
    """The run whose first pass finds most beyond its time, at the best number of leaves."""
    widths = {min(leaves, len(estimate.leaves)) for leaves, _ in costs.local_points} or {len(estimate.leaves)}
    children = len(estimate.shares)
    expected = estimate.expected(len(estimate.leaves))

    firsts = []
    for leaves in widths:
        first_s = level.value_s(expected[: leaves * children])
        firsts.append((first_s - costs.draft_s(leaves), leaves, first_s))
    _, leaves, first_s = max(firsts)

    step_s = costs.draft_s(leaves)
    levels = levels_of(first_s, _decay(estimate, costs, prices), step_s)
    value_s = sum(levels) - len(levels) * step_s
    return Run(estimate.leaves[:leaves], step_s, first_s, value_s, sum(levels) / prices.token_s)


def levels_of(first_s: float, decay: float, step_s: float) -> Sequence[float]:
    """What each level of a run is worth, as long as that exceeds its time: each `decay` of the one before."""
    levels: list[float] = []
    level_s = first_s
    while level_s > step_s and len(levels) < MAX_RUN:
        levels.append(level_s)
        level_s *= decay
    return levels


def _decay(estimate: TreeEstimate, costs: Costs, prices: Prices) -> float:
    """Share of a level's value that the next level has: that of the children from which a step goes on.

    A leaf beside the best one is evaluated if what it finds pays for it.
    """
    decay = 0.0
    for rank, chance in enumerate(estimate.shares):
        more_s = costs.draft_s(rank + 1) - costs.draft_s(max(rank, 1))
        if rank == 0 or chance * prices.token_s > more_s:
            decay += chance
    return decay


def worker_s(first_s: float, stay_rate: float, level_s: float, pass_s: float) -> float:
    """Value of the worker's next level, worth `first_s` if it were lost otherwise, and of those that follow it.

    The pass after this one verifies what this one misses, with the levels that come meanwhile: 1 + r + ... + r^(L + 1)
    tokens instead of 1 + r + ... + r^L, for a stay rate r and L levels in a pass. So r^(L + 1) of it is recovered. Each
    further level takes the worker's time for one.
    """
    in_pass = pass_s / level_s
    recovered: float = min(in_pass, 1.0) * stay_rate ** (in_pass + 1)
    lost_s = first_s * (1 - recovered)
    later = levels_of(lost_s * stay_rate, stay_rate, level_s)
    return lost_s + sum(later) - len(later) * level_s


def tree_s(costs: Costs, shares: Sequence[float], limit: int) -> float:
    """Seconds per token of the gateway alone, with trees of the best depth and the best number of leaves.

    A step finds below each leaf `shares` of its probability, best first, and a pass takes the likeliest `limit`
    candidates. If others share the passes, all do the same.
    """
    requests = 1 + costs.sharers
    best_s = costs.verify_s(requests)
    for width in sorted({leaves for leaves, _ in costs.local_points} or {costs.local_leaves}):
        best_s = min(best_s, _deepened_s(costs, shares, limit, width, requests))
    return best_s


def _deepened_s(costs: Costs, shares: Sequence[float], limit: int, width: int, requests: int) -> float:
    """Seconds per token of trees with so many leaves a step, at the depth beyond which they take longer."""
    step_s = requests * costs.draft_s(width)
    leaves = [1.0]
    candidates: list[float] = []
    drafted_s = 0.0
    best_s = inf
    for _ in range(MAX_RUN):
        drafted_s += step_s
        leaves = sorted([chance * share for chance in leaves[:width] for share in shares], reverse=True)
        candidates = sorted([*candidates, *leaves], reverse=True)[:limit]

        # Alone, a pass over all candidates is the estimate; rows that others wait for must pay.
        fewest = 1 if costs.sharers else len(candidates)
        token_s = min(
            (drafted_s + costs.verify_s(requests * (1 + count))) / (1 + sum(candidates[:count]))
            for count in range(fewest, len(candidates) + 1)
        )
        if token_s >= best_s:
            break
        best_s = token_s

    return best_s
