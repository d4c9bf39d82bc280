"""State that policy `adaptive` keeps for one completion: its round, its pace and length, and its local passes.

`policy.prefer` limits local passes by their number. A price of a pass alone would buy them everywhere or nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from cloud_gateway.core.policies.estimators import NEWEST, Pace
from cloud_gateway.core.policies.policy import Costs
from cloud_gateway.core.policies.settings import Prefer
from cloud_gateway.core.policies.tuning import TUNING, Tuning


class CompletionState:
    """One request's completion. Seconds."""

    def __init__(self, prefer: Prefer, tuning: Tuning = TUNING) -> None:
        self.tuning = tuning
        self.prefer = prefer

        # The round under way.
        self.passes = 0
        """Local passes since the last verify."""
        self.wants_run = False
        """Whether a local run would have been worth most."""
        self._began_s: float | None = None
        """When the round began, later by the time since then in which prompts of others were read."""
        self._paused_s = 0.0

        # The completion.
        self.tokens = 0
        self._rounds_wanted = 0
        """Rounds that had a use for a local run."""
        self._pace = Pace()
        self._credit = 0.0
        """Local passes that may be made beside a worker."""
        self._charged = 0.0
        """What the latest pass was charged."""

        # Learnt from the completions before.
        self._length = tuning.length
        self._before_s = 0.0
        """Seconds per token; 0: unknown."""
        self._run_rate = tuning.draft_pass_share
        """Share of tokens at which a run was worth most; before any, as many as `balanced` allows passes for."""

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state with another completion."""
        self._length, self._before_s, self._run_rate = state

    def state(self, reference_s: float | None) -> list[float]:
        """Length, pace and use of runs, as the next completion of this kind starts with them."""
        length = self._length
        if self.tokens:
            length += (self.tokens - length) * NEWEST

        pace_s = self._before_s
        if reference_s is not None:
            pace_s = self.token_s(reference_s)

        return [length, pace_s, self._wanted_share]

    def asked(self, now: float, paused_s: float) -> bool:
        """A decision is asked for; whether it is the first. `paused_s`: `Costs.paused_s`, which belongs to no round."""
        first = self._began_s is None
        began_s = now if self._began_s is None else self._began_s + paused_s - self._paused_s
        self._began_s = began_s
        self._paused_s = paused_s
        return first

    def ended(self, emitted: int, passes: float, now: float) -> float:
        """A round ended; returns the seconds that it took. `passes`: what co-located k = 2 drafts for its tokens."""
        took_s = 0.0 if self._began_s is None else now - self._began_s
        self._pace.sample(took_s, emitted)
        if self.prefer == "balanced":
            self._credit += self.tuning.draft_pass_share * passes

        self.tokens += emitted
        self._rounds_wanted += self.wants_run
        self.wants_run = False
        self.passes = 0
        self._began_s = now
        return took_s

    def token_s(self, reference_s: float) -> float:
        """Seconds per token that it attains; never more than the gateway attains alone."""
        return min(self._pace.value or self._before_s or reference_s, reference_s)

    def remaining(self, costs: Costs) -> float:
        """Tokens to come: at most as many as such completions have."""
        return min(costs.remaining, self._length)

    @property
    def _wanted_share(self) -> float:
        """Share of tokens at which a run was worth most."""
        prior = self.tuning.prior_tokens
        return (self._rounds_wanted + self._run_rate * prior) / (self.tokens + prior)

    def runs(self, costs: Costs, tokens: float) -> float:
        """Local runs in the tokens to come, of which each brings so many that need no run of their own."""
        return self._wanted_share * self.remaining(costs) / (1 + self._wanted_share * tokens)

    @property
    def may_draft(self) -> bool:
        """Whether a run may begin beside a worker; it may then overdraw, so that runs are as long as they pay."""
        return self.prefer == "latency" or self._credit > 0

    def drafts(self, passes: float) -> None:
        """A local pass is to be made, of which this is the request's part."""
        self.passes += 1
        self._credit -= passes
        self._charged = passes

    def withdraws(self) -> None:
        """The latest pass is not made."""
        self.passes -= 1
        self._credit += self._charged
