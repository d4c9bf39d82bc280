"""Online logistic calibration (Platt scaling) of draft probabilities: P(the target chooses this draft token).

A draft's own probability q is a good estimate, but a small or quantised model is overconfident. The map starts as
the identity (P = q) and is updated with every draft token that a commit confirms or refutes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

RANKS = 4
"""Ranks with a weight of their own; later ones count as the last."""
MAX_LOGIT = 7.0
_MIN_COST = math.log1p(math.exp(-MAX_LOGIT))
MAX_SCORE = 30.0
"""Estimates are clipped to these log-odds: 1e-13 is as good as never, and exp of a larger one may overflow."""


class Calibrator:
    """P(the target chooses this token | its parent was accepted), from q, its rank among its siblings and the entropy.

    Logistic regression on (1, logit q, entropy, rank), by stochastic gradient with a step of its own for every weight
    (AdaGrad) and a pull to the identity, so that few observations move it little.
    """

    def __init__(self, rate: float = 0.2, pull: float = 0.002) -> None:
        self._rate, self._pull = rate, pull
        self._weights = [0.0, 1.0, 0.0] + [0.0] * RANKS
        self._prior = tuple(self._weights)
        self._squares = [4.0] * len(self._weights)

    def __call__(self, cost: float, entropy: float, rank: int) -> float:
        """Probability of a child of this cost (nats of -log q), entropy (nats) and rank (0 is the draft's best)."""
        return 1 / (1 + math.exp(-self._score(cost, entropy, rank)))

    def cost(self, cost: float, entropy: float, rank: int) -> float:
        """The same in nats of -log P."""
        return math.log1p(math.exp(-self._score(cost, entropy, rank)))

    def _score(self, cost: float, entropy: float, rank: int) -> float:
        w = self._weights
        score = w[0] + w[1] * _logit(cost) + w[2] * (entropy - 1.0) + w[3 + (rank if rank < RANKS else RANKS - 1)]
        return min(max(-MAX_SCORE, score), MAX_SCORE)  # in this order not-a-number counts as never

    def observe(self, costs: Sequence[float], entropy: float, chosen: int | None) -> None:
        """One evaluated prefix whose next token is known: `chosen` indexes `costs`, None where it is not among them.

        Ignored where a cost or the entropy is not a finite number.
        """
        if not (math.isfinite(entropy) and all(map(math.isfinite, costs))):
            return
        for rank, cost in enumerate(costs):
            error = self(cost, entropy, rank) - (rank == chosen)
            self._step(0, error)
            self._step(1, error * _logit(cost))
            self._step(2, error * (entropy - 1.0))
            self._step(3 + min(rank, RANKS - 1), error)

    def _step(self, i: int, gradient: float) -> None:
        self._squares[i] += gradient * gradient
        step = self._rate / math.sqrt(self._squares[i])
        self._weights[i] -= step * (gradient + self._pull * (self._weights[i] - self._prior[i]))


def _logit(cost: float) -> float:
    """log(q / (1 - q)) for q = exp(-cost), within limits."""
    if cost < _MIN_COST:
        return MAX_LOGIT
    return -math.log(math.expm1(cost)) if cost < MAX_LOGIT else -cost if cost < 2 * MAX_LOGIT else -2 * MAX_LOGIT
