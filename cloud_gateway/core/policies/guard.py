"""The guard of policy `adaptive`: never slower than the gateway alone, by time spent and not by what was expected.

It compares seconds for the tokens that remain. `normal` is the pace measured with the worker. `alone` is what this
gateway attains without one, the better of plain decoding and the tree that it would draft: an estimate from measured
curves, scaled by the measured ratio of actual to expected time. Under `offload`, which spares passes, it is the better
of plain decoding and co-located k = 2.

    normal --(`alone` is faster by a margin)--------------> alone      reason "slower" or "unready"
    alone  --(an interval of tokens has passed)-----------> normal     reason "probe"; a failed probe doubles it
    alone  --(the estimate of `alone` has become slower)--> normal     reason "faster"
    normal --(`balanced`: a trial of the gateway alone)---> alone      reason "probe"; each trial doubles its interval

Under `balanced` the local draft works behind the worker's mistakes only, at the hard places, so that the estimate of
`alone` is too high: for this reason it is tried as well.

Two running means with a confidence bound were the other way. They need a variance, which tokens of a chat do not have:
a completion that turns into a list becomes faster for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from cloud_gateway.core.policies.policy import Costs
from cloud_gateway.core.policies.settings import Prefer
from cloud_gateway.core.policies.tuning import TUNING, Tuning
from cloud_gateway.core.policies.worth import tree_s

Mode = Literal["normal", "alone"]
Reason = Literal["slower", "unready", "probe", "faster"]
"""Of a change: with the worker it was slower, the worker has not read the prompt yet, to measure it again, or with the
worker it is faster."""
MAX_INTERVAL = 4096.0
"""Maximum tokens between two probes."""
ESTIMATE_INTERVAL = 16
"""Rounds for which an estimate of the tree's pace stands: it follows means over many tokens."""


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


class MeasuredPace:
    """Time per token in some unit, over the latest tokens. In units, since these follow the machine's load."""

    def __init__(self, units: float = 0.0, tokens: float = 0.0) -> None:
        self.units = units
        self.tokens = tokens

    def add(self, tokens: float, units: float, max_tokens: float) -> None:
        """Takes in a round; older ones fade so that `max_tokens` are remembered."""
        kept = min(1.0, max(max_tokens - tokens, 0.0) / max(self.tokens, 1.0))
        self.units = self.units * kept + units
        self.tokens = self.tokens * kept + tokens

    @property
    def value(self) -> float:
        """Units per token; 0 if nothing was measured."""
        if self.tokens:
            return self.units / self.tokens
        return 0.0

    def over(self, min_tokens: float) -> float:
        """The value, once it was measured over so many tokens or for twice their time; 0 before."""
        if self.tokens >= min_tokens or self.units >= 2 * min_tokens:
            return self.units / self.tokens
        return 0.0


class Alone(NamedTuple):
    """Expected paces of the gateway without a worker, in plain decoding steps a token."""

    tree: float
    """Of the tree that it would draft, with what it has to read first."""
    best: float
    """Of the better of that tree and plain decoding; under `offload` at least that of co-located k = 2."""


class Guard:
    """One request's mode."""

    def __init__(self, prefer: Prefer, tuning: Tuning = TUNING) -> None:
        self.mode: Mode = "normal"
        self.change: tuple[Mode, Reason] | None = None
        """What the latest choice changed."""
        self.tuning = tuning
        self.prefer = prefer

        self._worker = MeasuredPace()
        """In plain decoding steps: with the worker."""
        self._unready = MeasuredPace()
        """In plain decoding steps: before the worker's first frame in this completion."""
        self._alone = MeasuredPace(tuning.trial_tokens, tuning.trial_tokens)
        """In units of the estimate, which counts for so many tokens."""

        self._interval = tuning.first_interval
        """Tokens alone after which the worker is probed."""
        self._tokens_alone = 0.0
        """Tokens alone since the last probe."""
        self._next_trial_at = tuning.first_interval
        """Tokens with the worker after which the gateway alone is tried."""
        self._tokens_with_worker = 0.0
        """Tokens with the worker since it was last alone."""
        self._trial_left = 0.0
        """Tokens of the current trial still to come."""

        self._estimate = 1.0
        """The tree's expected pace in plain decoding steps a token."""
        self._choices = 0
        self._reads = False
        """Whether this round reads much, so that it says nothing of the pace alone."""

    def state(self) -> Sequence[float]:
        """What the next completion goes on from."""
        paces = (self._alone.units, self._alone.tokens)
        trials = (self._tokens_with_worker, self._next_trial_at, self._trial_left)
        return [self._worker.units, self._worker.tokens, self._interval, self._tokens_alone, *paces, *trials]

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state."""
        self._worker = MeasuredPace(*state[:2])
        self._interval, self._tokens_alone = state[2:4]
        self._alone = MeasuredPace(*state[4:6])
        self._tokens_with_worker, self._next_trial_at, self._trial_left = state[6:]

    def round(self, tokens: int, steps: float, *, ready: bool) -> None:
        """A round ended, as long as so many plain decoding steps. `ready`: whether the worker had read the prompt."""
        memory = self.tuning.first_interval
        if self.mode == "normal":
            pace = self._worker if ready else self._unready
            pace.add(tokens, steps, memory)
            self._tokens_with_worker += tokens

            # What was measured alone fades into the estimate, since the text and the load change meanwhile.
            faded = tokens * self.tuning.decay_per_token
            self._alone.add(faded, faded, memory)
        else:
            self._tokens_alone += tokens
            self._trial_left -= tokens
            if not self._reads:
                self._alone.add(tokens, steps / self._estimate, memory)
        self._reads = False

    def choose(self, costs: Costs, shares: Sequence[float], limit: int, remaining: float, *, ready: bool) -> Mode:
        """The mode for the next round, in which the completion has so many tokens to come.

        `shares` and `limit`: as `tree_s` has them.
        """
        self._reads |= costs.local_backlog_s > costs.batch_backlog_s
        alone = self._expected_alone(costs, shares, limit, remaining)
        normal = self._measured_normal(alone, ready=ready)

        # 1. The worker is as fast as the gateway alone, or not measured yet.
        if normal <= (1 + self._margin) * alone.best:
            if self.mode == "normal" and normal:
                self._interval = self.tuning.first_interval
            if self._tries_alone(normal, alone, remaining):
                return self._enter("alone", "probe")
            return self._enter("normal", "faster")

        self._tokens_with_worker = 0.0
        self._next_trial_at = self.tuning.first_interval
        self._trial_left = 0.0

        # 2. It was slower, and is measured again after an interval.
        if self._tokens_alone >= self._interval and remaining > self.tuning.prior_tokens:
            self._interval = min(2 * self._interval, MAX_INTERVAL)
            self._tokens_alone = 0.0
            self._worker = MeasuredPace()
            self._unready = MeasuredPace()
            return self._enter("normal", "probe")

        # 3. It was slower.
        return self._enter("alone", "slower" if ready else "unready")

    @property
    def _margin(self) -> float:
        """Share by which the worker's way must be slower to be left: more if passes here are to be spared."""
        if self.prefer == "latency":
            return self.tuning.margin
        if self.prefer == "balanced":
            return 2 * self.tuning.margin
        return 4 * self.tuning.margin

    def _expected_alone(self, costs: Costs, shares: Sequence[float], limit: int, remaining: float) -> Alone:
        """What the gateway would attain without the worker."""
        plain_s = costs.verify_s(1 + costs.sharers)
        first_rounds = self._choices & (self._choices - 1) == 0  # powers of two: the first rounds teach most
        if first_rounds or self._choices % ESTIMATE_INTERVAL == 0:
            self._estimate = min(tree_s(costs, shares, limit) / plain_s, 1.0)
        self._choices += 1

        # Reading is certain and its saving is expected, so that it counts twice.
        reading = 2 * costs.local_backlog_s / plain_s / remaining
        ratio = self._alone.value
        tree = ratio * (self._estimate + reading)
        best = min(tree, ratio)
        if self.prefer == "offload":
            colocated = Reference.of(costs, shares[0]).token_s / plain_s + reading
            best = max(best, min(colocated, 1.0))
        return Alone(tree, best)

    def _measured_normal(self, alone: Alone, *, ready: bool) -> float:
        """Plain decoding steps a token with the worker; 0 while too little was measured to judge it."""
        pace = self._worker
        if not ready and self._unready.over(self.tuning.max_tokens_unready):
            pace = self._unready

        # Long waits are judged before many tokens have come.
        tokens_lost = self.tuning.max_tokens_lost * alone.best
        if pace.units - alone.best * pace.tokens > tokens_lost:
            return pace.value

        min_tokens = self.tuning.prior_tokens
        if self.prefer == "offload":
            min_tokens = 2 * min_tokens
        return pace.over(min_tokens)

    def _tries_alone(self, normal: float, alone: Alone, remaining: float) -> bool:
        """Whether a trial of the gateway alone goes on or begins."""
        if self.prefer != "balanced" or normal <= self.tuning.trial_threshold * alone.tree:
            return False

        due = self._trial_left <= 0 and self._tokens_with_worker >= self._next_trial_at
        if due and remaining > self.tuning.prior_tokens:
            self._tokens_with_worker = 0.0
            self._next_trial_at = min(2 * self._next_trial_at, MAX_INTERVAL)
            self._trial_left = self.tuning.trial_tokens
        return self._trial_left > 0

    def _enter(self, mode: Mode, reason: Reason) -> Mode:
        """Notes the change, if it is one."""
        self.change = None
        if mode != self.mode:
            self.change = (mode, reason)
        self.mode = mode
        return mode
