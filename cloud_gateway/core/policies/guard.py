"""The guard of policy `adaptive`: never slower than the gateway alone, by time spent and not by what was expected.

`normal` is the pace measured with the worker. `alone` is what this gateway attains without one by measured curves: the
better of plain decoding and the tree that it would draft. Under `offload`, which spares passes, it is the better of
plain decoding and co-located k = 2. Both are in plain decoding steps a token, which follow the machine's load.

    normal --(`alone` is faster by a margin)--------------> alone      reason "slower"
    alone  --(an interval of tokens has passed)-----------> normal     reason "probe"; a failed probe doubles it
    alone  --(the estimate of `alone` has become slower)--> normal     reason "faster"

Two running means with a confidence bound were the other way. They need a variance, which tokens of a chat do not have:
a completion that turns into a list becomes faster for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from cloud_gateway.core.policies.policy import Costs
from cloud_gateway.core.policies.settings import Prefer
from cloud_gateway.core.policies.tuning import TUNING, Tuning
from cloud_gateway.core.policies.worth import tree_s

Mode = Literal["normal", "alone"]
Reason = Literal["slower", "probe", "faster"]
"""Of a change: with the worker it was slower, it is measured again, or with the worker it is faster."""
MAX_INTERVAL = 4096.0
"""Maximum tokens between two probes."""
ESTIMATE_INTERVAL = 16
"""Rounds for which an estimate of the tree's pace stands: it follows means over many tokens."""
MARGINS: Mapping[Prefer, int] = {"latency": 1, "balanced": 2, "offload": 4}
"""Times `Tuning.margin` by which the worker's way must be slower to be left: more if passes here are to be spared."""


class Reference(NamedTuple):
    """What the gateway can always have without a worker, per token, from measured curves."""

    token_s: float
    """The better of the two below, by the closed form (Leviathan et al., equation 1)."""
    passes: float
    """Draft passes of co-located k = 2, also if plain decoding is faster."""
    plain_s: float
    colocated_s: float
    """Co-located k = 2 that also reads an accepted last draft token, which the closed form leaves out."""

    @classmethod
    def of(cls, costs: Costs, match: float) -> Reference:
        """If others share the passes, all do the same, and each waits for the others' drafts, too."""
        requests = 1 + costs.sharers
        tokens = 1 + match + match * match
        plain_s = costs.verify_s(requests)
        chain_s = (2 * requests * costs.draft_s(1) + costs.verify_s(3 * requests)) / tokens
        read_s = match * match * costs.local_token_s / tokens
        return cls(min(plain_s, chain_s), 2 / tokens, plain_s, chain_s + read_s)


class Guard:
    """One request's mode. Paces in plain decoding steps a token."""

    def __init__(self, prefer: Prefer, tuning: Tuning = TUNING) -> None:
        self.mode: Mode = "normal"
        self.tuning = tuning
        self.prefer = prefer
        self._steps = 0.0
        """What the tokens measured with the worker took."""
        self._tokens = 0.0
        """Tokens measured with the worker; older ones fade."""
        self._interval = tuning.first_interval
        """Tokens alone after which the worker is probed."""
        self._tokens_alone = 0.0
        """Tokens alone since the last probe."""
        self._estimate = 1.0
        """The pace of the tree that the gateway would draft."""
        self._choices = 0

    def state(self) -> Sequence[float]:
        """What the next completion goes on from."""
        return [self._steps, self._tokens, self._interval, self._tokens_alone]

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state."""
        self._steps, self._tokens, self._interval, self._tokens_alone = state

    def round(self, tokens: int, steps: float) -> None:
        """A round ended, as long as so many plain decoding steps."""
        if self.mode == "alone":
            self._tokens_alone += tokens
            return

        kept = min(1.0, max(self.tuning.first_interval - tokens, 0.0) / max(self._tokens, 1.0))
        self._steps = self._steps * kept + steps
        self._tokens = self._tokens * kept + tokens

    def choose(self, costs: Costs, shares: Sequence[float], limit: int, remaining: float) -> Reason | None:
        """Sets the mode for the next round, in which the completion has so many tokens to come; the reason of a change.

        `shares` and `limit`: as `tree_s` has them.
        """
        alone = self._alone(costs, shares, limit, remaining)
        normal = self._normal(alone)

        # 1. The worker is as fast as the gateway alone, or not measured yet.
        if normal <= (1 + MARGINS[self.prefer] * self.tuning.margin) * alone:
            if self.mode == "normal" and normal:
                self._interval = self.tuning.first_interval
            return self._enter("normal", "faster")

        # 2. It was slower, and is measured again after an interval.
        if self._tokens_alone >= self._interval and remaining > self.tuning.prior_tokens:
            self._interval = min(2 * self._interval, MAX_INTERVAL)
            self._tokens_alone = 0.0
            self._steps = 0.0
            self._tokens = 0.0

            # A fresh estimate judges it, since a few long rounds alone may have taught much.
            self._choices = 0
            return self._enter("normal", "probe")

        # 3. It was slower.
        return self._enter("alone", "slower")

    def _alone(self, costs: Costs, shares: Sequence[float], limit: int, remaining: float) -> float:
        """The pace that the gateway would attain without the worker, with what its draft has to read first."""
        plain_s = costs.verify_s(1 + costs.sharers)
        first_rounds = self._choices & (self._choices - 1) == 0  # powers of two: the first rounds teach most
        if first_rounds or self._choices % ESTIMATE_INTERVAL == 0:
            self._estimate = min(tree_s(costs, shares, limit) / plain_s, 1.0)
        self._choices += 1

        # Reading is certain and its saving is expected, so that it counts twice.
        reading = 2 * costs.local_backlog_s / plain_s / remaining
        pace = self._estimate
        if self.prefer == "offload":
            pace = max(pace, Reference.of(costs, shares[0]).token_s / plain_s)
        return min(pace + reading, 1.0)

    def _normal(self, alone: float) -> float:
        """The pace with the worker; 0 while too little was measured to judge it."""
        # Long waits are judged before many tokens have come.
        if self._steps - alone * self._tokens > self.tuning.max_tokens_lost * alone:
            return self._steps / max(self._tokens, 1.0)

        min_tokens = self.tuning.prior_tokens
        if self.prefer == "offload":
            min_tokens = 2 * min_tokens
        if self._tokens >= min_tokens:
            return self._steps / self._tokens
        return 0.0

    def _enter(self, mode: Mode, reason: Reason) -> Reason | None:
        """The reason, if the mode changes."""
        if mode == self.mode:
            return None
        self.mode = mode
        return reason
