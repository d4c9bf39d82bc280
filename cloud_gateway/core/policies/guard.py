"""The guard of policy `adaptive`: where the worker's way has measurably been slower than the gateway alone, it is left.

Three modes. Seconds for the tokens that remain, each from what was measured:

    normal    the action of the greatest expected value          pace in this mode * tokens
    local     reads what is missing, then co-located k = 2        co-located pace * tokens + backlog
    plain     no waiting and no drafting                          plain pace * tokens

`normal` is left for the least of the others once it has been measured over `MIN_TOKENS`. It is tried again (probed) for
as many tokens after an interval, which doubles each time that the probe fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cloud_gateway.core.policies.actions import Costs
from cloud_gateway.core.policies.budget import Reference

Mode = Literal["normal", "local", "plain"]
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


class Guard:
    """One request's mode, with what it was based on."""

    def __init__(self) -> None:
        self.mode: Mode = "normal"
        self._steps = self._tokens = 0.0
        """Time and tokens of rounds in `normal`. Times are in plain decoding steps, since these follow the load."""
        self._interval, self._since = FIRST_INTERVAL, 0.0
        self._unready_steps = self._unready = 0.0
        """Time and tokens of this answer's rounds in `normal` before the worker's first frame."""
        self._probe = 0.0
        """Tokens of a probe that are left."""

    def state(self) -> Sequence[float]:
        """What the next answer goes on from, as plain numbers."""
        return [self._steps, self._tokens, self._interval, self._since]

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state."""
        self._steps, self._tokens, self._interval, self._since = state

    def round(self, tokens: int, steps: float, *, ready: bool) -> None:
        """A round ended, which took as long as so many plain decoding steps. `ready`: whether the worker had read the
        prompt."""
        if self.mode != "normal":
            self._since += tokens
        elif not ready:
            self._unready_steps, self._unready = self._unready_steps + steps, self._unready + tokens
        else:
            self._probe = max(self._probe - tokens, 0.0)
            keep = min(1.0, max(REMEMBERED - tokens, 0.0) / max(self._tokens, 1.0))
            self._steps, self._tokens = self._steps * keep + steps, self._tokens * keep + tokens

    def _normal(self, ready: bool) -> float:
        """Plain steps per token in `normal`, as measured; 0 where it has not been for long enough."""
        if ready or self._unready < UNREADY_TOKENS:
            return self._steps / self._tokens if self._tokens >= MIN_TOKENS and self._probe <= 0 else 0.0
        return self._unready_steps / self._unready

    def choose(self, costs: Costs, reference: Reference, remaining: float, *, ready: bool) -> Mode:
        """The mode for the next round, in which the answer has so many tokens to come."""
        together_s = reference.together_s * remaining + costs.local_backlog_s
        plain_s = reference.plain_s * remaining
        normal_s = self._normal(ready) * plain_s
        if normal_s <= MARGIN * min(together_s, plain_s):
            if self.mode == "normal" and normal_s:
                self._interval = FIRST_INTERVAL
            return self._enter("normal")
        if self._since >= self._interval and remaining > MIN_TOKENS:
            self._interval, self._since = min(2 * self._interval, MAX_INTERVAL), 0.0
            self._probe, self._steps, self._tokens = MIN_TOKENS, 0.0, 0.0
            self._unready_steps = self._unready = 0.0
            return self._enter("normal")
        return self._enter("local" if together_s < plain_s else "plain")

    def _enter(self, mode: Mode) -> Mode:
        self.mode = mode
        return mode
