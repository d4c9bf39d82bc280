"""A completion as policy `adaptive` counts it: its round under way, its pace, and how long such completions are."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_gateway.core.policies.actions import Costs
from cloud_gateway.core.policies.estimators import Pace
from cloud_gateway.core.policies.guard import Reference
from cloud_gateway.core.policies.tuning import Tuning


class Completion:
    """One request's completion. Seconds."""

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self.run, self.pass_s = 0, 0.0
        """Local passes since the last verify, and the price of each further one of the run."""
        self.wants = self.read_last = self.suggested = False
        """Whether a local run would have been worth most in this round, whether the last turn of a long catch-up was
        one of reading, and whether sources without a model have proposed anything."""
        self.tokens, self.wanted = 0, 0
        """So far, and rounds that had a use for a local run."""
        self._length, self._before_s, self._rate = tuning.length, 0.0, tuning.rate
        """Learnt from the completions before: tokens, seconds per token (0: unknown), and the share of tokens at which
        a local run was worth most."""
        self._began = self._paused_s = 0.0
        """When the round began, later by the time since then in which prompts of others were read."""
        self._pace, self._drafting = Pace(), Pace()
        """Of all rounds, and of those with a local run."""

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state with another completion."""
        self._length, self._before_s, self._rate = state

    def state(self, reference: Reference | None) -> list[float]:
        """Length, pace and use of local runs, as the next completion of this kind starts with them."""
        newest = (self.tokens - self._length) * self.tuning.length_weight if self.tokens else 0.0
        pace_s = self._before_s if reference is None else self.token_s(reference)
        return [self._length + newest, pace_s, self.wanted_rate]

    def begins(self, now: float, paused_s: float) -> None:
        """The first decision. `paused_s`: `Costs.paused_s`."""
        self._began, self._paused_s = now, paused_s

    def paused(self, paused_s: float) -> None:
        """Time in which prompts of others were read belongs to no round."""
        self._began, self._paused_s = self._began + paused_s - self._paused_s, paused_s

    def ended(self, emitted: int, now: float) -> float:
        """A round ended; returns what it took."""
        took_s = now - self._began
        self._pace.sample(took_s, emitted)
        if self.run:
            self._drafting.sample(took_s, emitted)
        self.tokens, self.wanted = self.tokens + emitted, self.wanted + self.wants
        self.run, self.wants, self._began = 0, False, now
        return took_s

    def token_s(self, reference: Reference) -> float:
        """Seconds per token that it attains; never more than the gateway attains alone."""
        return min(self._pace.value or self._before_s or reference.token_s, reference.token_s)

    def drafting_s(self, reference: Reference) -> float:
        """The same of rounds with a local run. Where other sources know what follows, tokens come faster: at their
        price no run would pay, and where they know nothing each token would take a pass."""
        return min(self._drafting.value or reference.token_s, reference.token_s)

    @property
    def wanted_rate(self) -> float:
        """Share of tokens at which a local run was worth most."""
        prior = self.tuning.prior_tokens
        return (self.wanted + self._rate * prior) / (self.tokens + prior)

    def uses(self, costs: Costs, tokens: float) -> float:
        """Local runs in the tokens to come, each of which brings so many that need no run of their own."""
        return self.wanted_rate * self.remaining(costs) / (1 + self.wanted_rate * tokens)

    def remaining(self, costs: Costs) -> float:
        """Tokens to come: at most as many as such completions have."""
        return min(costs.remaining, self._length)
