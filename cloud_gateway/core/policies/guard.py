"""The guard of policy `adaptive`: never slower than the gateway alone, by time spent and not by what was expected.

Seconds for the tokens that remain: `normal` is the pace measured with the worker; `alone` is what this gateway attains
without one, the better of plain decoding and the tree that it would draft: an estimate from measured curves, times how
long it took for each second expected, once it was tried. Under `offload`, which spares passes, it is the better of
plain decoding and co-located k = 2. `normal` is left where `alone` is faster by a margin, and tried again (probed)
after an interval of tokens, which doubles each time that the probe fails. Under `balanced` the local draft works behind
the worker's mistakes only, at the hard places, so that the estimate of `alone` is too high: there it is probed as well.
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
"""Most tokens between two probes."""
ESTIMATED_EVERY = 16
"""Rounds for which an estimate of the tree's pace stands: it follows means over many tokens."""


class Reference(NamedTuple):
    """What the gateway can always have without a worker, per token, from measured curves."""

    token_s: float
    """The better of the two below, by the closed form (Leviathan et al., equation 1)."""
    passes: float
    """Of co-located k = 2, also where plain decoding is faster."""
    plain_s: float = 0.0
    together_s: float = 0.0
    """Co-located k = 2 with reading its last draft token where that was accepted, which the closed form leaves out."""

    @classmethod
    def of(cls, costs: Costs, match: float) -> Reference:
        """Where all that share the passes do the same: each waits for the others' drafts, too."""
        tokens, all_of = 1 + match + match * match, 1 + costs.sharers
        together = (2 * all_of * costs.draft_s(1) + costs.verify_s(3 * all_of)) / tokens
        plain = costs.verify_s(all_of)
        return cls(min(plain, together), 2 / tokens, plain, together + match * match * costs.local_token_s / tokens)


class Pace:
    """Time per token in some unit, over the latest tokens. In units, since these follow the machine's load."""

    def __init__(self, units: float = 0.0, tokens: float = 0.0) -> None:
        self.units, self.tokens = units, tokens

    def round(self, tokens: float, units: float, remembered: float) -> None:
        """A round ended."""
        keep = min(1.0, max(remembered - tokens, 0.0) / max(self.tokens, 1.0))
        self.units, self.tokens = self.units * keep + units, self.tokens * keep + tokens

    def over(self, tokens: float) -> float:
        """0 where it has not been measured over so many tokens, or for twice their time."""
        return self.units / self.tokens if self.tokens >= tokens or self.units >= 2 * tokens else 0.0


class Guard:
    """One request's mode."""

    def __init__(self, prefer: Prefer, tuning: Tuning = TUNING) -> None:
        self.mode: Mode = "normal"
        self.change: tuple[Mode, Reason] | None = None
        """What the latest choice changed."""
        self.tuning, self.prefer, self._interval, self._since = tuning, prefer, tuning.probe_after, 0.0
        self._worker, self._unready = Pace(), Pace()
        """In plain decoding steps: with the worker, and before its first frame in this completion."""
        self._alone = Pace(tuning.expected, tuning.expected)
        """In units of the estimate, which counts for so many tokens."""
        self._together, self._untried, self._trial = 0.0, tuning.probe_after, 0.0
        """Tokens with the worker since it was last alone, those after which that is tried, and a trial's to come."""
        self._estimate, self._asked, self._reads = 1.0, 0, False
        """The tree's pace in plain decoding steps, rounds since it was estimated, and whether this one reads much."""

    def state(self) -> Sequence[float]:
        """What the next completion goes on from."""
        alone, tried = (self._alone.units, self._alone.tokens), (self._together, self._untried, self._trial)
        return [self._worker.units, self._worker.tokens, self._interval, self._since, *alone, *tried]

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state."""
        self._interval, self._since = state[2:4]
        self._worker, self._alone = Pace(*state[:2]), Pace(*state[4:6])
        self._together, self._untried, self._trial = state[6:]

    def round(self, tokens: int, steps: float, *, ready: bool) -> None:
        """A round ended, as long as so many plain decoding steps. `ready`: whether the worker had read the prompt."""
        if self.mode == "normal":
            (self._worker if ready else self._unready).round(tokens, steps, self.tuning.remembered)
            aged = tokens * self.tuning.aged
            self._alone.round(aged, aged, self.tuning.remembered)
            self._together += tokens
        else:
            self._since += tokens
            self._trial -= tokens
            if not self._reads:
                self._alone.round(tokens, steps / self._estimate, self.tuning.remembered)
        self._reads = False

    def choose(self, costs: Costs, shares: Sequence[float], limit: int, remaining: float, *, ready: bool) -> Mode:
        """The mode for the next round, in which the completion has so many tokens to come. `shares` and `limit`: as
        `tree_s` has them."""
        tuning, plain_s = self.tuning, costs.verify_s(1 + costs.sharers)
        if self._asked % ESTIMATED_EVERY == 0 or self._asked & (self._asked - 1) == 0:  # the first rounds teach most
            self._estimate = min(tree_s(costs, shares, limit) / plain_s, 1.0)
        self._asked += 1
        self._reads |= costs.local_backlog_s > costs.batch_backlog_s
        reading = 2 * costs.local_backlog_s / plain_s / remaining  # it is sure, what it saves is expected
        drafting = self._alone.over(0) * (self._estimate + reading)
        alone = min(drafting, self._alone.over(0))  # plain decoding, where that is faster
        worker = self._worker if ready or not self._unready.over(tuning.unready) else self._unready
        judged, margin = tuning.judged, tuning.margin if self.prefer == "latency" else tuning.spared
        if self.prefer == "offload":
            alone = max(alone, min(Reference.of(costs, shares[0]).token_s / plain_s + reading, 1.0))
            judged, margin = 2 * judged, 2 * margin
        lost = worker.units - alone * worker.tokens > tuning.lost * alone
        normal = worker.units / worker.tokens if lost else worker.over(judged)
        if normal <= (1 + margin) * alone:
            if self.mode == "normal" and normal:
                self._interval = tuning.probe_after
            if self._tries_alone(normal, drafting, remaining):
                return self._enter("alone", "probe")
            return self._enter("normal", "faster")
        self._together, self._untried, self._trial = 0.0, tuning.probe_after, 0.0
        if self._since >= self._interval and remaining > tuning.judged:
            self._interval, self._since = min(2 * self._interval, MAX_INTERVAL), 0.0
            self._worker, self._unready = Pace(), Pace()
            return self._enter("normal", "probe")
        return self._enter("alone", "slower" if ready else "unready")

    def _tries_alone(self, normal: float, drafting: float, remaining: float) -> bool:
        """Whether a trial of the gateway alone goes on or begins, which would have this pace by the estimate."""
        if self.prefer != "balanced" or normal <= self.tuning.hoped * drafting:
            return False
        if self._trial <= 0 and self._together >= self._untried and remaining > self.tuning.judged:
            self._together, self._untried = 0.0, min(2 * self._untried, MAX_INTERVAL)
            self._trial = self.tuning.trial
        return self._trial > 0

    def _enter(self, mode: Mode, reason: Reason) -> Mode:
        self.mode, self.change = mode, (mode, reason) if mode != self.mode else None
        return mode
