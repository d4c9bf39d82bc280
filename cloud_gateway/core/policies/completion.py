"""State that policy `adaptive` keeps for one completion: its round, its pace and length, and its local passes.

`policy.prefer` limits local passes by their number. A price of a pass alone would buy them everywhere or nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from cloud_gateway.core.policies.estimators import NEWEST, Pace
from cloud_gateway.core.policies.guard import Reference
from cloud_gateway.core.policies.policy import Costs
from cloud_gateway.core.policies.settings import Prefer
from cloud_gateway.core.policies.tuning import Tuning


class CompletionState:
    """One request's completion. Seconds."""

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning

        # The round under way.
        self.passes = 0
        """Local passes since the last verify."""
        self.pass_s = 0.0
        """Price of each further pass of the run."""
        self.wants_run = False
        """Whether a local run would have been worth most in this round."""
        self._began_s = 0.0
        """When the round began, later by the time since then in which prompts of others were read."""
        self._paused_s = 0.0

        # The completion.
        self.read_last = False
        """Whether the last turn of a long catch-up was one of reading."""
        self.suggested = False
        """Whether sources without a model have proposed anything."""
        self.tokens = 0
        self.rounds_wanted = 0
        """Rounds that had a use for a local run."""
        self._pace = Pace()
        """Of all rounds."""
        self._drafting_pace = Pace()
        """Of rounds with a local run."""

        # Learnt from the completions before.
        self._length = tuning.length
        self._before_s = 0.0
        """Seconds per token; 0: unknown."""
        self._run_rate = tuning.draft_pass_share
        """Share of tokens at which a local run was worth most; before any, as many as `balanced` allows."""

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state with another completion."""
        self._length, self._before_s, self._run_rate = state

    def state(self, reference: Reference | None) -> list[float]:
        """Length, pace and use of local runs, as the next completion of this kind starts with them."""
        length = self._length
        if self.tokens:
            length += (self.tokens - length) * NEWEST
        if reference is None:
            pace_s = self._before_s
        else:
            pace_s = self.token_s(reference)
        return [length, pace_s, self.run_rate]

    def begins(self, now: float, paused_s: float) -> None:
        """The first decision. `paused_s`: `Costs.paused_s`."""
        self._began_s = now
        self._paused_s = paused_s

    def paused(self, paused_s: float) -> None:
        """Time in which prompts of others were read belongs to no round."""
        self._began_s = self._began_s + paused_s - self._paused_s
        self._paused_s = paused_s

    def ended(self, emitted: int, now: float) -> float:
        """A round ended; returns the seconds that it took."""
        took_s = now - self._began_s
        self._pace.sample(took_s, emitted)
        if self.passes:
            self._drafting_pace.sample(took_s, emitted)

        self.tokens += emitted
        self.rounds_wanted += self.wants_run

        self.passes = 0
        self.wants_run = False
        self._began_s = now
        return took_s

    def token_s(self, reference: Reference) -> float:
        """Seconds per token that it attains; never more than the gateway attains alone."""
        return min(self._pace.value or self._before_s or reference.token_s, reference.token_s)

    def drafting_s(self, reference: Reference) -> float:
        """Seconds per token of rounds with a local run; never more than the gateway attains alone.

        If other sources know what follows, tokens come faster: at their price no run would pay, and if they know
        nothing each token would take a pass.
        """
        return min(self._drafting_pace.value or reference.token_s, reference.token_s)

    @property
    def run_rate(self) -> float:
        """Share of tokens at which a local run was worth most."""
        prior = self.tuning.prior_tokens
        return (self.rounds_wanted + self._run_rate * prior) / (self.tokens + prior)

    def uses(self, costs: Costs, tokens: float) -> float:
        """Local runs in the tokens to come, each of which brings so many that need no run of their own."""
        return self.run_rate * self.remaining(costs) / (1 + self.run_rate * tokens)

    def remaining(self, costs: Costs) -> float:
        """Tokens to come: at most as many as such completions have."""
        return min(costs.remaining, self._length)


class Budget:
    """Allows a share of the passes of co-located k = 2; `latency` has no limit."""

    def __init__(self, prefer: Prefer, tuning: Tuning) -> None:
        self.limited = prefer != "latency"
        if prefer == "balanced":
            self._pass_share = tuning.draft_pass_share
        else:
            self._pass_share = 0.0
        self._credit = 0.0
        self._latest = 0.0
        """What the latest pass was charged."""

    @property
    def open(self) -> bool:
        """Whether a run of local passes may begin; it may then overdraw, so that runs are as long as they pay."""
        return not self.limited or self._credit > 0

    def earn(self, passes: float) -> None:
        """Tokens were emitted, for which co-located k = 2 makes so many passes."""
        self._credit += self._pass_share * passes

    def spend(self, passes: float = 1.0) -> None:
        """A local pass is to be made, of which this is the request's part."""
        self._credit -= passes
        self._latest = passes

    def give_back(self) -> None:
        """The latest pass is not made."""
        self._credit += self._latest


RefusalKind = Literal["step", "candidates", "worker", "budget", "backlog", "reading"]
SENTENCES: Mapping[RefusalKind, str] = {
    "step": "a draft step takes {cost:.1f} ms, and what it finds would save {gain:.1f} ms",
    "candidates": "to read other sources' candidates takes {cost:.1f} ms, and to draft after them saves {gain:.1f} ms",
    "worker": "the worker's next candidates save {cost:.1f} ms, drafting here {gain:.1f} ms",
    "budget": "`policy.prefer` leaves it no more passes while a worker drafts",
    "backlog": "it has to read for {cost:.1f} ms first, and saves {gain:.1f} ms over the tokens to come",
    "reading": "it was still reading the committed tokens",
}


class Refusal(NamedTuple):
    """Why no local run began in a round. Seconds."""

    kind: RefusalKind
    cost_s: float = 0.0
    """What drafting takes, or what is gained without it."""
    gain_s: float = 0.0
    """What drafting is expected to save, or what plain decoding takes."""
    sharers: int = 0
    """Other requests in the same passes, for which tokens count less and waits more."""

    def __str__(self) -> str:
        sentence = SENTENCES[self.kind].format(cost=1000 * self.cost_s, gain=1000 * self.gain_s)
        if not self.sharers:
            return sentence
        return f"{sentence} (other requests in the same passes: {self.sharers})"
