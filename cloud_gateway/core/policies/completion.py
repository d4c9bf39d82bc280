"""A completion as policy `adaptive` counts it: its round under way, its pace, how long such completions are, how many
local passes `policy.prefer` leaves it, and why the local draft was not asked.

A price of a pass alone would buy local passes everywhere or nowhere, so that they are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from cloud_gateway.core.policies.estimators import Pace
from cloud_gateway.core.policies.guard import Reference
from cloud_gateway.core.policies.policy import Costs
from cloud_gateway.core.policies.settings import Prefer
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


class Budget:
    """Allows a share of the passes of co-located k = 2; `latency` has no limit."""

    def __init__(self, prefer: Prefer, tuning: Tuning) -> None:
        self.limited = prefer != "latency"
        self._share = tuning.share if prefer == "balanced" else 0.0
        self._credit = self._latest = 0.0

    @property
    def open(self) -> bool:
        """Whether a run of local passes may begin; it may then overdraw, so that runs are as long as they pay."""
        return not self.limited or self._credit > 0

    def earn(self, passes: float) -> None:
        """Tokens were emitted, for which co-located k = 2 makes so many passes."""
        self._credit += self._share * passes

    def spend(self, share: float = 1.0) -> None:
        """A local pass is to be made, of which this is the request's share."""
        self._credit, self._latest = self._credit - share, share

    def give_back(self) -> None:
        """The latest pass is not made."""
        self._credit += self._latest


Kind = Literal["step", "candidates", "worker", "budget", "backlog", "reading"]
SENTENCES: Mapping[Kind, str] = {
    "step": "a draft step takes {cost:.1f} ms, and what it finds would save {gain:.1f} ms",
    "candidates": "to read other sources' candidates takes {cost:.1f} ms, and to draft after them saves {gain:.1f} ms",
    "worker": "the worker's next candidates save {cost:.1f} ms, drafting here {gain:.1f} ms",
    "budget": "`policy.prefer` leaves it no more passes while a worker drafts",
    "backlog": "it has to read for {cost:.1f} ms first, and saves {gain:.1f} ms over the tokens to come",
    "reading": "it was still reading the committed tokens",
}


class Refusal(NamedTuple):
    """One round's reason. Seconds."""

    kind: Kind
    cost_s: float = 0.0
    """What drafting takes, or what is gained without it."""
    gain_s: float = 0.0
    """What drafting is expected to save, or what plain decoding takes."""
    sharers: int = 0
    """Other requests in the same passes, for which tokens count less and waits more."""

    def __str__(self) -> str:
        sentence = SENTENCES[self.kind].format(cost=1000 * self.cost_s, gain=1000 * self.gain_s)
        return f"{sentence} (other requests in the same passes: {self.sharers})" if self.sharers else sentence
