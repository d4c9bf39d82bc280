"""What a candidate tree and an action are worth: tokens at their price, less time and passes.

Policy `adaptive` maximises tokens emitted per second. That is the same as choosing at each moment the largest of
`token_s * tokens - seconds`, where `token_s` is the seconds per token that the policy attains (Dinkelbach 1967): the
best action has a value near zero, and one of greater value lowers the seconds per token. Values are in seconds.

Requests that share passes wait for each other's rows and drafts, so that the tokens of all count: with n others of the
same pace, one comes n + 1 times as fast, and is worth that much less of everybody's time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from cloud_gateway.core.policies.policy import Costs

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
        self.token_s, self.shared = token_s / (1 + costs.sharers), costs.sharers > 0
        self._rows_s, self.alone = costs.rows_s, not costs.rows_s
        self.probe = None if costs.probe is None else (costs.probe[0] - self.base, costs.probe[1])
        """A number of candidates to try, and the least seconds that their pass can take."""

    def pass_s(self, candidates: int) -> float:
        """Seconds of a pass over so many candidates."""
        return self.verify_s(self.base + candidates)

    def rows_s(self, known: int, limit: int) -> Sequence[float]:
        """What each candidate's row takes, from the first one to the last that a pass may have (`Costs.rows_s`). For
        one alone: as a row behind those known."""
        return self._rows_s or [max((self.pass_s(known + SPAN) - self.pass_s(known)) / SPAN, 0.0)] * limit

    def best_count(self, survival: Sequence[float]) -> int:
        """How many of the candidates to verify: argmax over n of token_s * sum(survival[:n]) - pass_s(n), where the
        number on offer as a probe takes the least that it can."""
        verify_s, token_s, rows = self.verify_s, self.token_s, self.base
        best, count, gained = -verify_s(rows), 0, 0.0
        for n, chance in enumerate(survival, 1):
            gained += chance * token_s
            net = gained - verify_s(rows + n)
            if net > best:
                best, count = net, n
        if self.probe is not None and 0 <= self.probe[0] <= len(survival):
            tried, least_s = self.probe
            count = tried if token_s * sum(survival[:tried]) - least_s > best else count
        return count


class Level:
    """Value of the candidates that one draft step is expected to find, beside those known already: each pays for its
    row, and only the likeliest `limit` are verified."""

    __slots__ = ("_alone", "_had_s", "_known", "_limit", "_rows_s", "_token_s")

    def __init__(self, prices: Prices, survival: Sequence[float], limit: int) -> None:
        """`survival`: of the candidates known, in falling order."""
        known = self._known = survival[:limit]
        self._limit, self._token_s, self._alone = limit, prices.token_s, prices.alone
        self._rows_s = prices.rows_s(len(known), limit)
        self._had_s = self._paid(known)

    def value_s(self, found: Sequence[float]) -> float:
        """`found`: the survival of what the step finds."""
        return self._paid(sorted([*self._known, *found], reverse=True)[: self._limit]) - self._had_s

    def _paid(self, falling: Sequence[float]) -> float:
        """What the best number of these is worth beyond their rows."""
        token_s, value, best = self._token_s, 0.0, 0.0
        for chance, row_s in zip(falling, self._rows_s):
            value += token_s * chance - row_s
            if value > best:
                best = value
            elif self._alone:  # no further one pays either
                break
        return best


def run_s(first_s: float, fade: float, step_s: float, had_s: Sequence[float] = ()) -> float:
    """What local levels in a row are worth beyond their time, at the best number of levels: the first one is worth
    `first_s`, each further one `fade` of the one before, less what candidates below the same leaf save there already.

    `had_s`: what those of sources without a model save at each level; `first_s` contains that of the first one. They
    are less likely from level to level than what a draft finds, so that a run may pay though its first level does not.
    """
    best, value, level = 0.0, 0.0, first_s
    for depth in range(MAX_RUN):
        value = value + level - (had_s[depth] if depth < len(had_s) else 0.0) - step_s
        best = max(best, value)
        if level <= step_s:
            break
        level *= fade
    return best


def run_tokens(first_s: float, fade: float, step_s: float, token_s: float) -> float:
    """Tokens that the levels of such a run bring, those that pay for themselves."""
    tokens, level = 0.0, first_s
    for _ in range(MAX_RUN):
        if level <= step_s:
            break
        tokens += level / token_s
        level *= fade
    return tokens


def per_pass_s(first_s: float, fade: float, step_s: float, instead_s: float) -> float:
    """The most that a pass saves on average: max over d of (value of d levels - `instead_s`) / d."""
    best, value, level = 0.0, -instead_s, first_s
    for levels in range(1, MAX_RUN + 1):
        value += level - step_s
        best = max(best, value / levels)
        level *= fade
    return best


def credit(kept: float, levels: float) -> float:
    """Share of a level's worth that is lost where it is not in this pass but the worker has it for the next one.

    The next pass then verifies it with the levels that come meanwhile: 1 + kept + ... + kept^(levels + 1) tokens, where
    it would have been 1 + kept + ... + kept^levels. So kept^(levels + 1) of the level's worth comes back.
    """
    made_good: float = kept ** (levels + 1)
    return 1 - min(levels, 1.0) * made_good


def wait_value(chance: float, soon_s: float, late_s: float, run_s: float) -> float:
    """Value of waiting for a frame that comes in `soon_s` and is useful with this chance; where it is not, a useful
    one comes in `late_s`, if that is still worth it. `run_s`: what the worker's levels are worth when they come."""
    return chance * run_s - soon_s + (1 - chance) * max(run_s - max(late_s - soon_s, 0.0), 0.0)


def break_even(soon_s: float, late_s: float, run_s: float) -> float:
    """The chance at which `wait_value` is zero: 0 if waiting pays at every chance, 1 if it pays at none."""
    later_s = max(run_s - max(late_s - soon_s, 0.0), 0.0)
    if run_s <= later_s:
        return 0.0 if run_s > soon_s else 1.0
    return min(max((soon_s - later_s) / (run_s - later_s), 0.0), 1.0)


def reading_pays(saved_s: float, uses: float, backlog_s: float) -> bool:
    """Whether reading the backlog pays over the tokens still to come: this run's saving, and those of later ones."""
    return saved_s * (1 + uses) > backlog_s


def tree_s(costs: Costs, shares: Sequence[float], limit: int) -> float:
    """Seconds per token of the gateway alone, with trees of the best depth and the best number of leaves: a step finds
    below each leaf `shares` of its probability, best first, and a pass takes the likeliest `limit` candidates. Where
    others share the passes, all do the same."""
    all_of, best = 1 + costs.sharers, costs.verify_s(1 + costs.sharers)
    for width in sorted({leaves for leaves, _ in costs.local_points} or {costs.local_leaves}):
        step_s, ends, found, drafted_s, before_s = all_of * costs.draft_s(width), [1.0], list[float](), 0.0, inf
        for _ in range(MAX_RUN):
            drafted_s += step_s
            ends = sorted([mass * share for mass in ends[:width] for share in shares], reverse=True)
            found = sorted([*found, *ends], reverse=True)[:limit]
            now_s = min(
                (drafted_s + costs.verify_s(all_of * (1 + count))) / (1 + sum(found[:count]))
                for count in range(1 if costs.sharers else len(found), len(found) + 1)
            )
            if now_s >= before_s:
                break
            before_s = now_s
        best = min(best, before_s)
    return best
