"""How likely a worker is on the target's path after a token that nobody had proposed yet, by the target's entropy.

A walk that ends at an open leaf commits a token before any frame has shown whether the worker drafted it. WANSpec
(Algorithm 1) compares the entropy of the target's distribution for that token with a fixed φ: above it the worker
counts as diverged. Here φ is not fixed. A logistic regression on the entropy is learnt for each pair of worker and kind
of completion, from the frames that later show where the worker was:

    P(on the path | H) = 1 / (1 + exp(-(level + slope · (H - CENTRE)))),    slope <= 0

It is the probability with which the policy expects the worker's next level, in place of a constant. The limit φ is the
entropy at which waiting for that level is worth nothing.

Bins of the entropy with isotonic means were tried first: they need more cases, and their limit is an edge of a bin.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, isfinite, log

CENTRE = 1.3
"""Nats: the median entropy of the recorded targets (lab/edgespec_lab/sim/recording.md)."""
MAX_ENTROPY = 8.0
"""Nats; a larger entropy counts as this one, so that a single token moves the slope little."""
PRIOR_LEVEL = 2.2
"""Log-odds of 0.9 at CENTRE, the prior of a worker that stays on the path (`Tuning.stay_rate`)."""
PRIOR_SLOPE = -0.8
"""Log-odds a nat: -0.7 to -1.0 with all recorded drafts that are right less than 98 % of the time."""
PRIOR_INFORMATION = (0.36, 1.08)
"""Fisher information of the prior's level and slope: that of about four cases of probability 0.9, and of eight of
them 1.2 nats from CENTRE."""
KEPT = 1 - 1 / 80
"""Share of the information that a further case leaves, so that about the latest 80 cases count."""
MIN_WEIGHT = 0.02
"""Least information of one case, so that a case the regression was sure of can still correct it."""
MAX_LEVEL = 6.0
MAX_SLOPE = 3.0
"""Bounds on the parameters: beyond them the probability hardly changes."""


class PathOdds:
    """The regression of one pair. Entropies in nats."""

    def __init__(self) -> None:
        self.level = PRIOR_LEVEL
        self.slope = PRIOR_SLOPE
        self._information = [PRIOR_INFORMATION[0], 0.0, PRIOR_INFORMATION[1]]
        """Of level, of both together, and of slope."""

    def chance(self, entropy: float) -> float:
        """Probability that the worker is on the path after an open leaf of this entropy."""
        return 1 / (1 + exp(-(self.level + self.slope * _centred(entropy))))

    def limit(self, chance: float) -> float:
        """The entropy at which the worker is on the path with this probability: 0 if it is so nowhere, and infinite if
        it is so at every entropy up to MAX_ENTROPY."""
        if chance <= self.chance(MAX_ENTROPY):
            return inf
        if chance >= self.chance(0.0):
            return 0.0
        return CENTRE + (log(chance / (1 - chance)) - self.level) / self.slope

    def observe(self, entropy: float, *, on_path: bool) -> None:
        """A frame has shown where the worker was after an open leaf of this entropy: one step of Newton's method."""
        distance = _centred(entropy)
        chance = self.chance(entropy)
        weight = max(chance * (1 - chance), MIN_WEIGHT)

        # Older cases fade, the prior does not: the information never falls below it.
        level, both, slope = (KEPT * value for value in self._information)
        level += weight + (1 - KEPT) * PRIOR_INFORMATION[0]
        both += weight * distance
        slope += weight * distance * distance + (1 - KEPT) * PRIOR_INFORMATION[1]
        self._information = [level, both, slope]

        error = on_path - chance
        step = error / (level * slope - both * both)
        self.level = _within(self.level + step * (slope - both * distance), MAX_LEVEL)
        self.slope = min(_within(self.slope + step * (level * distance - both), MAX_SLOPE), 0.0)

    def state(self) -> list[float]:
        """The parameters and their information, as plain numbers."""
        return [self.level, self.slope, *self._information]

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state with another completion. Raises ValueError for a state that is not of this kind."""
        level, slope, *information = state
        if len(information) != 3 or not all(map(isfinite, state)) or slope > 0:
            raise ValueError(f"not a regression on the entropy: {state}")
        self.level = _within(level, MAX_LEVEL)
        self.slope = _within(slope, MAX_SLOPE)
        self._information = information


def _centred(entropy: float) -> float:
    """Nats from CENTRE; not-a-number counts as MAX_ENTROPY."""
    return (max(entropy, 0.0) if entropy < MAX_ENTROPY else MAX_ENTROPY) - CENTRE


def _within(value: float, bound: float) -> float:
    return min(max(value, -bound), bound)
