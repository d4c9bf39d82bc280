"""What a token and a draft pass of the gateway are worth, and how many passes it may make.

The reference is co-located speculative decoding with k = 2, whose time and passes per token follow from the acceptance
and the step times (Leviathan et al., equation 1), or plain decoding where that is faster.
"""

from __future__ import annotations

from dataclasses import dataclass

from cloud_gateway.core.actions import Costs, LinkView

BURST = 12.0
"""Passes that the bucket holds. A steady trickle keeps the worker behind; a burst and a rest does not."""
PACE = 0.96
"""The share of the reference's time that an answer may take before passes are spent on speed alone."""
AHEAD_TOKENS = 2.0
"""Lead over the reference, in its tokens, at which a burst for speed ends."""
RECOVERY_TOKENS = 30
"""A lag that the worker's pace makes good within so many tokens is borne without local passes."""
LEVELS = 6
"""Lengths of a local run that are compared."""
FADING = 0.01
"""What each further local level covers less than the one before: its leaves are more than one pass can take."""
LEAST_PRICE = 0.3
"""Least price of a pass where passes are not free, as a share of its time."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds per token and per pass by which a policy weighs its options."""

    token_s: float
    """Without local passes: the worker's pace, and a round trip for every lost path."""
    pass_s: float
    """What a local pass must save besides its own time."""
    reference_s: float
    """Per token, of the reference."""
    reference_passes: float
    """Draft passes per token of co-located k = 2."""

    @classmethod
    def of(
        cls, link: LinkView | None, costs: Costs, match: float, named: float, losses: float, *, free: bool
    ) -> Prices:
        """`match`: how often the draft's best token is right; `named`: its children contain the right one; `losses`:
        of the worker's path, per token; `free`: passes cost their time only.

        The price of a pass is the one at which mixing local and remote drafting saves most time per pass.
        """
        plain, step = costs.verify_s(1), costs.local_step_s
        tokens = 1 + match + match * match
        pace = plain if link is None else min(plain, link.step_s + losses * (link.rtt_s + link.step_s))
        if step is None:
            return cls(pace, 0.0, plain, 2 / tokens)
        reference = min(plain, (2 * step + costs.verify_s(3)) / tokens)
        runs = _runs(step, plain, named)
        if free:
            return cls(min(pace, *(seconds / tokens for _, seconds, tokens in runs)), 0.0, reference, 2 / tokens)
        saved = max((pace * gained - seconds) / passes for passes, seconds, gained in runs)
        return cls(pace, max(saved, LEAST_PRICE * step), reference, 2 / tokens)


def _runs(step_s: float, verify_s: float, named: float) -> list[tuple[int, float, float]]:
    """Passes, seconds and expected tokens of local runs of one level and more."""
    runs, level, tokens = [], 1.0, 1.0
    for passes in range(1, LEVELS + 1):
        level *= max(named - FADING * (passes - 1), 0.0)
        tokens += level
        runs.append((passes, passes * step_s + verify_s, tokens))
    return runs


class Budget:
    """Allows local passes of up to `share` of the reference's, in bursts; more while the answer is behind it."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._credit = BURST / 2
        self._bursting = False
        self._tokens = self._unpaid = 0
        self._began: float | None = None

    def earn(self, tokens: int) -> None:
        """Tokens were emitted."""
        self._tokens += tokens
        self._unpaid += tokens

    def spend(self) -> None:
        """A local pass is made."""
        self._credit -= 1

    def allows(self, prices: Prices, now: float) -> bool:
        """Whether a run of local passes may begin now."""
        if self._began is None:
            self._began = now
        self._credit = min(self._credit + self._unpaid * self.share * prices.reference_passes, BURST)
        self._unpaid = 0
        lead_s = self._tokens * prices.reference_s * PACE - (now - self._began)
        if self._bursting:
            self._bursting = (self.share > 0 and self._credit > 0) or lead_s < AHEAD_TOKENS * prices.reference_s
        else:
            bearable = max(prices.reference_s - prices.token_s, 0.0) * RECOVERY_TOKENS
            self._bursting = (self.share > 0 and self._credit >= BURST / 2) or lead_s < -bearable
        return self._bursting
