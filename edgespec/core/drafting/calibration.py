"""Online logistic calibration (Platt scaling) of draft probabilities: P(the target chooses this draft token).

A draft's own probability q is a good estimate, but a small or quantised model is overconfident. The map starts as
the identity (P = q) and is updated with every draft token that a commit confirms or refutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, expm1, isfinite, log, log1p, sqrt

RANKS = 4
"""Ranks with a weight of their own; later ones count as the last."""
PULL = 0.002
"""To the identity."""
MAX_LOGIT = 7.0
_MIN_COST = log1p(exp(-MAX_LOGIT))
MAX_SQUARE = 40.0
"""Of a calibration that is carried over: about the squared gradients of two hundred tokens."""
MAX_SCORE = 30.0
"""Estimates are clipped to these log-odds: 1e-13 is as good as never, and exp of a larger one may overflow."""


class Calibrator:
    """P(the target chooses this token | its parent was accepted), from q, its rank among its siblings and the entropy.

    Logistic regression on (1, logit q, entropy, rank), by stochastic gradient with a step of its own for every weight
    (AdaGrad) and a pull to the identity, so that few observations move it little.
    """

    def __init__(self, rate: float = 0.2) -> None:
        """`rate`: of the steps of a gradient."""
        self._rate = rate
        self._weights = [0.0, 1.0, 0.0] + [0.0] * RANKS
        self._squares = [4.0] * len(self._weights)

    def __call__(self, cost: float, entropy: float, rank: int) -> float:
        """Probability of a child of this cost (nats of -log q), entropy (nats) and rank (0 is the draft's best)."""
        return 1 / (1 + exp(-self._score(cost, entropy, rank)))

    def cost(self, cost: float, entropy: float, rank: int) -> float:
        """The same in nats of -log P."""
        return log1p(exp(-self._score(cost, entropy, rank)))

    def _score(self, cost: float, entropy: float, rank: int) -> float:
        """The log-odds of P."""
        w = self._weights
        score = w[0] + w[1] * _logit(cost) + w[2] * (entropy - 1.0) + w[3 + rank if rank < RANKS else -1]
        if -MAX_SCORE < score < MAX_SCORE:
            return score
        return _clipped(score)

    def observe(self, costs: Sequence[float], entropy: float, chosen: int | None) -> None:
        """One evaluated prefix whose next token is known: `chosen` indexes `costs`, None if it is not among them.

        Ignored if a cost or the entropy is not a finite number.
        """
        if not (isfinite(entropy) and all(map(isfinite, costs))):
            return

        rate = self._rate
        excess = entropy - 1.0
        bias, slope, doubt, *ranked = self._weights
        bias2, slope2, doubt2, *ranked2 = self._squares
        for rank, cost in enumerate(costs):  # written out for each weight: this runs for every committed token
            logit = _logit(cost)
            place = rank if rank < RANKS else RANKS - 1
            score = bias + slope * logit + doubt * excess + ranked[place]
            error = 1 / (1 + exp(-_clipped(score))) - (rank == chosen)
            by_slope = error * logit
            by_doubt = error * excess
            bias2 += error * error
            slope2 += by_slope * by_slope
            doubt2 += by_doubt * by_doubt
            ranked2[place] += error * error
            bias -= rate / sqrt(bias2) * (error + PULL * bias)
            slope -= rate / sqrt(slope2) * (by_slope + PULL * (slope - 1.0))
            doubt -= rate / sqrt(doubt2) * (by_doubt + PULL * doubt)
            ranked[place] -= rate / sqrt(ranked2[place]) * (error + PULL * ranked[place])

        self._weights = [bias, slope, doubt, *ranked]
        self._squares = [bias2, slope2, doubt2, *ranked2]

    def state(self) -> list[float]:
        """Weights and their squared gradients, as plain numbers."""
        return [*self._weights, *self._squares]

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state with another request.

        Raises ValueError for a state that is not of this kind.
        """
        count = len(self._weights)
        if len(state) != 2 * count or not all(map(isfinite, state)):
            raise ValueError(f"a calibration has {2 * count} finite numbers, not {len(state)}")

        self._weights = list(state[:count])
        self._squares = list(state[count:])
        self.begin()

    def begin(self) -> None:
        """Another request begins. The squared gradients are bounded, so that what was learnt can still be unlearnt."""
        self._squares = [min(max(square, 4.0), MAX_SQUARE) for square in self._squares]


def _clipped(score: float) -> float:
    """Within MAX_SCORE; not-a-number counts as never."""
    if score >= MAX_SCORE:
        return MAX_SCORE
    if score > -MAX_SCORE:
        return score
    return -MAX_SCORE


def _logit(cost: float) -> float:
    """log(q / (1 - q)) for q = exp(-cost), within limits."""
    if cost < _MIN_COST:
        return MAX_LOGIT
    if cost < MAX_LOGIT:
        return -log(expm1(cost))
    if cost < 2 * MAX_LOGIT:
        return -cost
    return -2 * MAX_LOGIT
