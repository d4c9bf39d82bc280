"""The eight tuned numbers of policy `adaptive`, and what is derived from them (docs/adaptive.md, "Numbers").

A number for each purpose was the other way. Of most of them, half as large or half as large again changed the median
over places by less than 1 % (dev/decisions/120-controller.md), so that numbers of the same meaning became one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """Each with its reason."""

    draft_pass_share: float = 0.3
    """Share of the draft passes of co-located k = 2 that `balanced` makes beside a worker: a choice of the product."""
    match: float = 0.85
    """Prior probability that a draft's best token is the target's: between the demo's two drafts, .75 and .95."""
    stay_rate: float = 0.9
    """Prior probability that the target stays in the worker's tree for one more token."""
    prior_tokens: float = 8.0
    """Observations that a prior counts for, and tokens over which a pace is measured before it is used. With more, a
    worker that is always wrong counts as right for longer."""
    first_interval: float = 64.0
    """Tokens before the first probe or trial, and tokens that a mean remembers. If the worker is 1.3 times slower than
    the gateway alone, the probe costs 4 % of them."""
    margin: float = 0.03
    """Share by which the worker's way must be slower to be left: less is within what a pace of 40 tokens varies."""
    max_tokens_lost: float = 2.5
    """Tokens that could have come without the worker in the time lost, for which it is left at once."""
    trial_threshold: float = 0.75
    """Share of the estimate of the pace alone that the worker's must exceed for a trial. Recorded drafts took 0.62 or
    more of the estimate, which treats tokens as independent."""

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """Prior probabilities of a node's four likeliest children: the rest after the best one halves by rank."""
        rest = (1 - self.match) / 3
        return (self.match, rest, rest / 2, rest / 2)

    @property
    def certain(self) -> float:
        """Maximum probability that a frame comes at all: a worker may be stopped at any time."""
        return 1 - (1 - self.stay_rate) ** 2

    @property
    def length(self) -> float:
        """Tokens of a completion before any has ended: enough for one failed probe."""
        return 2 * self.first_interval

    @property
    def max_tokens_unready(self) -> float:
        """Tokens over which the pace is measured while the worker reads the prompt, before it counts."""
        return 3 * self.prior_tokens

    @property
    def trial_tokens(self) -> float:
        """Tokens of a trial of the gateway alone, and tokens for which the estimate of its pace counts.

        With 8 or 12 of them, a few tokens by chance decided.
        """
        return 3 * self.prior_tokens

    @property
    def decay_per_token(self) -> float:
        """Tokens by which the estimate of the pace alone is renewed for each token with the worker."""
        return self.prior_tokens / self.first_interval


TUNING = Tuning()
