"""The seven tuned numbers of policy `adaptive`, and what is derived from them (docs/adaptive.md, "Numbers").

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
    """Tokens before the first probe, and tokens that a mean remembers. If the worker is 1.3 times slower than the
    gateway alone, the probe costs 4 % of them."""
    margin: float = 0.03
    """Share by which the worker's way must be slower to be left: less is within what a pace of 40 tokens varies."""
    max_tokens_lost: float = 2.5
    """Tokens that could have come without the worker in the time lost, for which it is left at once."""

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """Prior probabilities of a node's four likeliest children: the rest after the best one halves by rank."""
        rest = (1 - self.match) / 3
        return (self.match, rest, rest / 2, rest / 2)

    @property
    def length(self) -> float:
        """Tokens of a completion before any has ended: enough for one failed probe."""
        return 2 * self.first_interval


TUNING = Tuning()
