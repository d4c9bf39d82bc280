"""Policy `rolling-k`: WANSpec's Algorithm 1 with the K of the cluster post, which follows the acceptance."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from cloud_gateway.core.policies.policy import Action, Costs, LinkView, Outcome
from cloud_gateway.core.policies.wanspec import WanSpec
from cloud_gateway.core.verify.candidates import CandidateTree


class RollingK:
    """The post's `AdaptiveSpeculationController`: K moves by the mean acceptance of the last rounds.

    Above 0.9 it grows by one; above 0.8 it stays; above 0.6 it falls by one, not below 3; else by two, not below
    `least`. What the post leaves open is closed as it stands there: a mean of 0.6 to 0.8 with K at 3 or less keeps K.
    """

    WARM_UP = 10

    def __init__(self, least: int = 1, most: int = 10, window: int = 100, start: int = 5) -> None:
        self.least = least
        self.most = most
        self.k = start
        self._rates: deque[float] = deque(maxlen=window)

    def update(self, accepted: int, proposed: int) -> None:
        """One round: how many of the tokens proposed were accepted."""
        self._rates.append(accepted / proposed if proposed > 0 else 0.0)
        if len(self._rates) < self.WARM_UP:
            return

        mean = sum(self._rates) / len(self._rates)
        if mean > 0.9 and self.k < self.most:
            self.k += 1
        elif mean > 0.8:
            return
        elif mean > 0.6 and self.k > 3:
            self.k -= 1
        elif mean <= 0.6 and self.k > self.least:
            self.k = max(self.least, self.k - 2)


@dataclass(slots=True)
class RollingWanSpec(WanSpec):
    """Algorithm 1 whose k follows the acceptance; without a worker it is standard speculative decoding with that k."""

    name = "rolling-k"
    uses_k = False
    rolling: RollingK = field(default_factory=RollingK)

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """Algorithm 1 with the present k."""
        self.k = self.rolling.k
        self._local.k = self.k
        return WanSpec.decide(self, tree, link, costs, now)

    def verified(self, outcome: Outcome, now: float) -> None:
        """Moves k. Rounds without candidates tell nothing of the acceptance."""
        if outcome.depth:
            self.rolling.update(min(outcome.emitted - 1, outcome.depth), outcome.depth)
        WanSpec.verified(self, outcome, now)
