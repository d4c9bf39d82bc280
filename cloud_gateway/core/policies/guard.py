"""The guard of policy `adaptive`: never slower than the gateway alone, by time spent and not by what was expected.

Seconds for the tokens that remain: `normal` pace with the worker * tokens; `local` (reads what is missing, then
co-located k = 2) co-located pace * tokens + backlog; `plain` plain pace * tokens. Once it has been measured, `normal`
is left for the better of the others where that is faster by `Tuning.margin`. It is tried again (probed) after an
interval of tokens, which doubles each time that the probe fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from cloud_gateway.core.policies.actions import Costs
from cloud_gateway.core.policies.tuning import TUNING, Tuning

Mode = Literal["normal", "local", "plain"]
Reason = Literal["slower", "unready", "probe", "faster"]
"""Of a change: with the worker it was slower, the worker has not read the prompt yet, to measure it again, or with the
worker it is faster."""
MAX_INTERVAL = 4096.0
"""Most tokens between two probes."""


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
    """Plain decoding steps per token, over the latest tokens. In steps, since these follow the machine's load."""

    def __init__(self, steps: float = 0.0, tokens: float = 0.0) -> None:
        self.steps, self.tokens = steps, tokens

    def round(self, tokens: int, steps: float, remembered: float) -> None:
        """A round ended."""
        keep = min(1.0, max(remembered - tokens, 0.0) / max(self.tokens, 1.0))
        self.steps, self.tokens = self.steps * keep + steps, self.tokens * keep + tokens

    def over(self, tokens: float) -> float:
        """0 where it has not been measured over so many tokens, or for twice their time."""
        return self.steps / self.tokens if self.tokens >= tokens or self.steps >= 2 * tokens else 0.0


class Guard:
    """One request's mode."""

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self.mode: Mode = "normal"
        self.change: tuple[Mode, Reason] | None = None
        """What the latest choice changed."""
        self.tuning, self._interval, self._since = tuning, tuning.probe_after, 0.0
        self._worker, self._unready = Pace(), Pace()
        """With the worker, and before its first frame in this completion."""

    def state(self) -> Sequence[float]:
        """What the next completion goes on from."""
        return [self._worker.steps, self._worker.tokens, self._interval, self._since]

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state."""
        steps, tokens, self._interval, self._since = state
        self._worker = Pace(steps, tokens)

    def round(self, tokens: int, steps: float, *, ready: bool) -> None:
        """A round ended, as long as so many plain decoding steps. `ready`: whether the worker had read the prompt."""
        if self.mode == "normal":
            (self._worker if ready else self._unready).round(tokens, steps, self.tuning.remembered)
        else:
            self._since += tokens

    def choose(self, costs: Costs, reference: Reference, remaining: float, *, ready: bool) -> Mode:
        """The mode for the next round, in which the completion has so many tokens to come."""
        tuning, plain_s = self.tuning, reference.plain_s * remaining
        local_s = reference.together_s * remaining + costs.local_backlog_s
        worker = self._worker if ready or not self._unready.over(tuning.unready) else self._unready
        normal = worker.over(tuning.judged)
        if normal * plain_s <= (1 + tuning.margin) * min(local_s, plain_s):
            if self.mode == "normal" and normal:
                self._interval = tuning.probe_after
            return self._enter("normal", "faster")
        if self._since >= self._interval and remaining > tuning.judged:
            self._interval, self._since = min(2 * self._interval, MAX_INTERVAL), 0.0
            self._worker, self._unready = Pace(), Pace()
            return self._enter("normal", "probe")
        return self._enter("local" if local_s < plain_s else "plain", "slower" if ready else "unready")

    def _enter(self, mode: Mode, reason: Reason) -> Mode:
        self.mode, self.change = mode, (mode, reason) if mode != self.mode else None
        return mode
