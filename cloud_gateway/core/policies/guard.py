"""The guard of policy `adaptive`: where the worker's way has measurably been slower than the gateway alone, it is left.

Four modes. Seconds for the tokens that remain, each from what was measured:

    normal    the action of the greatest expected value          pace with the worker * tokens
    narrow    the same where a token counts half                  the same
    local     reads what is missing, then co-located k = 2        co-located pace * tokens + backlog
    plain     no waiting and no drafting                          plain pace * tokens

Once it has been measured (over `MIN_TOKENS`, or for twice their time), `normal` is narrowed where the better of `local`
and `plain` would be faster at all, and left for that where it is faster by `MARGIN`. It is tried again (probed) for as
many tokens after an interval, which doubles each time that the probe fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cloud_gateway.core.policies.actions import Costs
from cloud_gateway.core.policies.budget import Reference

Mode = Literal["normal", "narrow", "local", "plain"]
Reason = Literal["slower", "unready", "probe", "faster"]
"""Of a change: with the worker it was slower, the worker has not read the prompt yet, to measure it again, or with the
worker it is faster."""
MIN_TOKENS = 8.0
"""Tokens over which `normal` is measured before it is judged, and those of a probe: fewer are one or two rounds."""
UNREADY_TOKENS = 24.0
"""The same while the worker is reading the prompt, which is soon over where it is well."""
REMEMBERED = 60.0
"""Tokens over which its pace is a mean."""
FIRST_INTERVAL, MAX_INTERVAL = 64.0, 4096.0
"""Tokens before the first probe and before any: a probe that is 1.3 times slower than the gateway alone costs 4 % of
64 tokens, and less of each longer interval."""
MARGIN = 1.03
"""How much slower `normal` has to be to be left: less is within what a pace of 40 tokens varies."""


class Pace:
    """Plain decoding steps per token, over the latest tokens. In steps, since these follow the machine's load."""

    def __init__(self, steps: float = 0.0, tokens: float = 0.0) -> None:
        self.steps, self.tokens = steps, tokens

    def round(self, tokens: int, steps: float) -> None:
        """A round ended."""
        keep = min(1.0, max(REMEMBERED - tokens, 0.0) / max(self.tokens, 1.0))
        self.steps, self.tokens = self.steps * keep + steps, self.tokens * keep + tokens

    def measured(self, tokens: float) -> bool:
        """Whether it was over so many tokens, or for twice as long as plain decoding takes for them."""
        return self.tokens >= tokens or self.steps >= 2 * tokens

    def known(self) -> float:
        """0 where it has not been measured over `MIN_TOKENS`, or for twice their time."""
        return self.steps / self.tokens if self.measured(MIN_TOKENS) else 0.0


class Guard:
    """One request's mode, with what it was based on."""

    def __init__(self) -> None:
        self.mode: Mode = "normal"
        self.reason: Reason = "faster"
        """Of the last change of mode."""
        self.changed = False
        """Whether the latest choice was another mode than the one before."""
        self._worker, self._unready = Pace(), Pace()
        """With the worker, and before its first frame in this answer."""
        self._interval, self._since = FIRST_INTERVAL, 0.0

    def state(self) -> Sequence[float]:
        """What the next answer goes on from, as plain numbers."""
        pace = self._worker
        return [pace.steps, pace.tokens, self._interval, self._since]

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state."""
        steps, tokens, self._interval, self._since = state
        self._worker = Pace(steps, tokens)

    @property
    def with_worker(self) -> bool:
        """Whether the worker's candidates are waited for."""
        return self.mode in ("normal", "narrow")

    def round(self, tokens: int, steps: float, *, ready: bool) -> None:
        """A round ended, which took as long as so many plain decoding steps. `ready`: whether the worker had read the
        prompt."""
        if self.with_worker:
            (self._worker if ready else self._unready).round(tokens, steps)
        else:
            self._since += tokens

    def choose(self, costs: Costs, reference: Reference, remaining: float, *, ready: bool) -> Mode:
        """The mode for the next round, in which the answer has so many tokens to come."""
        plain_s = reference.plain_s * remaining
        local_s = reference.together_s * remaining + costs.local_backlog_s
        alone_s = min(local_s, plain_s)
        worker = self._worker if ready or not self._unready.measured(UNREADY_TOKENS) else self._unready
        normal_s = worker.known() * plain_s
        if normal_s <= MARGIN * alone_s:
            if self.with_worker and normal_s:
                self._interval = FIRST_INTERVAL
            return self._enter("narrow", "slower") if normal_s > alone_s else self._enter("normal", "faster")
        if self._since >= self._interval and remaining > MIN_TOKENS:
            self._interval, self._since = min(2 * self._interval, MAX_INTERVAL), 0.0
            self._worker, self._unready = Pace(), Pace()
            return self._enter("normal", "probe")
        return self._enter("local" if local_s < plain_s else "plain", "slower" if ready else "unready")

    def _enter(self, mode: Mode, reason: Reason) -> Mode:
        self.changed = mode != self.mode
        if self.changed:
            self.mode, self.reason = mode, reason
        return mode
