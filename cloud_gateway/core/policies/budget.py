"""What a token and a draft pass of the gateway are worth, and how many passes it may make.

The reference is co-located speculative decoding with k = 2, whose time and passes per token follow from the acceptance
and the step times (Leviathan et al., equation 1), or plain decoding where that is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from cloud_gateway.core.policies.actions import Costs, LinkView
from edgespec.core.protocol.messages import MAX_DEPTH

BURST = 12.0
"""Passes that the bucket holds. A steady trickle keeps the worker behind; a burst and a rest does not."""
PACE = 0.988
"""The share of the reference's time that an answer may take before passes are spent on speed alone."""
AHEAD_TOKENS = 2.0
"""Lead over the reference, in its tokens, at which a burst for speed ends."""
RECOVERY_TOKENS = 30
"""No local passes where the worker is expected to recover within this many tokens."""
LEVELS = 8
"""Lengths of a local run that are compared."""
ROWS = 4
"""Candidates verified for each level of a local run."""
FADING = 0.01
"""What each further local level covers less than the one before: its leaves are more than one pass can take."""
MIN_PRICE = 0.5
"""Least price of a pass where passes are not free, as a share of its time."""
HASTE = 0.98
"""Share of the reference's time per token that local drafting must reach while the answer is behind."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What is known of the draft."""

    match: float
    """How often its best token is right."""
    named: float
    """How often the right token is among the children of a node, all of them being there."""
    losses: float
    """Of the worker's path, per token."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Co-located k = 2, or plain decoding, per token."""

    token_s: float
    passes: float

    @classmethod
    def of(cls, costs: Costs, match: float) -> Reference:
        """By the closed form."""
        tokens, step = 1 + match + match * match, costs.local_step_s
        together = float("inf") if step is None else (2 * step + costs.verify_s(3)) / tokens
        return cls(min(costs.verify_s(1), together), 2 / tokens)


@dataclass(frozen=True, slots=True)
class LocalRun:
    """A local run of so many passes and the verify after it, as expected."""

    passes: int
    seconds: float
    tokens: float
    last_tokens: float
    """What its last level adds."""

    @property
    def pace_s(self) -> float:
        """Seconds per token."""
        return self.seconds / self.tokens

    @classmethod
    def all(cls, costs: Costs, draft: Acceptance) -> Sequence[LocalRun]:
        """Runs of one level and more; the fewer leaves a pass takes, the sooner the target's path is not among them."""
        step = costs.local_step_s
        if step is None:
            return ()
        kept = min(log2(costs.local_leaves) / 4, 1.0)
        spread = draft.match + kept * (draft.named - draft.match)
        runs, level, tokens = [], draft.named, 1.0
        for passes in range(1, LEVELS + 1):
            tokens += level
            runs.append(cls(passes, passes * step + costs.verify_s(1 + ROWS * passes), tokens, level))
            level *= max(spread - FADING * passes, 0.0)
        return runs


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds per token and per pass by which a policy weighs its options."""

    token_s: float
    """Without local passes: the worker's pace, and a round trip for every lost path."""
    pass_s: float
    """What a local pass must save besides its own time."""
    local_s: float
    """Per token of the local runs that these prices lead to; infinite without a local draft."""

    @classmethod
    def of(cls, link: LinkView | None, costs: Costs, draft: Acceptance) -> Prices:
        """Where passes cost their time only."""
        runs = LocalRun.all(costs, draft)
        local = min((run.pace_s for run in runs), default=float("inf"))
        return cls(min(_pace(link, costs, draft), local), 0.0, local)

    @classmethod
    def scarce(
        cls, link: LinkView | None, costs: Costs, draft: Acceptance, reference: Reference, *, hurry: bool
    ) -> Prices:
        """The price of a pass at which mixing local and remote drafting saves most time per pass; in a hurry, at which
        local drafting keeps up with the reference."""
        pace, runs, step = _pace(link, costs, draft), LocalRun.all(costs, draft), costs.local_step_s
        if step is None:
            return cls(pace, 0.0, float("inf"))
        fast = [run for run in runs if run.pace_s <= HASTE * reference.token_s] if hurry else runs
        if not fast:
            return cls.of(link, costs, draft)
        best = max(fast, key=lambda run: (pace * run.tokens - run.seconds) / run.passes)
        saved = min((pace * best.tokens - best.seconds) / best.passes, pace * best.last_tokens - step)
        return cls(pace, max(saved, MIN_PRICE * step), best.pace_s)


def _pace(link: LinkView | None, costs: Costs, draft: Acceptance) -> float:
    """Seconds per token without local passes: the worker's, whose tree may be so many levels ahead of what it knows."""
    plain = costs.verify_s(1)
    if link is None:
        return plain
    ahead = (link.rtt_s + 1.5 * plain) / MAX_DEPTH
    return min(plain, max(link.step_s, ahead) + draft.losses * (link.rtt_s + link.step_s))


class Budget:
    """Allows local passes of up to `share` of the reference's, in bursts; more while the answer is behind it."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.behind = self.spending = False
        """In a burst for speed, and in one of passes saved up."""
        self._credit = BURST / 2
        self._tokens = 0
        self._began: float | None = None

    @property
    def open(self) -> bool:
        """Whether a run of local passes may begin."""
        return self.behind or self.spending

    def earn(self, tokens: int, reference: Reference) -> None:
        """Tokens were emitted."""
        self._tokens += tokens
        self._credit = min(self._credit + tokens * self.share * reference.passes, BURST)

    def spend(self) -> None:
        """A local pass is made."""
        self._credit -= 1

    def look(self, reference: Reference, pace_s: float, now: float) -> None:
        """Before a decision; `pace_s`: seconds per token that are expected without local passes."""
        if self._began is None:
            self._began = now
        lead_s = self._tokens * reference.token_s * PACE - (now - self._began)
        bearable = max(reference.token_s - pace_s, 0.0) * RECOVERY_TOKENS
        self.behind = lead_s < (AHEAD_TOKENS * reference.token_s if self.behind else -bearable)
        self.spending = self.share > 0 and self._credit >= (0 if self.spending else BURST / 2)
