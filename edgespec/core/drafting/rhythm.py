"""When a gateway takes candidates, estimated from the times in its commits: so nodes share frames and none comes late.

A pass that has begun takes no more candidates, so what a worker drafts meanwhile is needed at its end. After a commit
the gateway's next pass mostly begins at once, and takes about as long as those before. What is sent by `last_call`
arrives while it still runs; later the gateway may be waiting, so nodes are sent as they come.
"""

from __future__ import annotations

import math

WEIGHT = 0.3
"""Of the newest pass in the mean: the last five or so count, since a pass takes longer with more candidates."""
MAX_HOLD = 0.25
"""Longest time that nodes wait for others, as a share of a pass. Half as long costs a third more frames; twice as long
a hundredth of time where the pass is shorter than expected."""
MIN_LEVELS = 2
"""Levels below the last committed token that are sent at once: after a divergence the gateway may wait for them."""


class Rhythm:
    """One request's rounds, as its worker sees them. Seconds on the worker's clock."""

    def __init__(self) -> None:
        self.pass_s = 0.0
        """Mean of the latest passes; 0 until the gateway has stated one, and then nothing waits."""
        self._at = -math.inf

    def committed(self, pass_s: float, now: float) -> None:
        """A commit arrived, with the duration of the pass that chose its tokens; 0 where the gateway states none."""
        self._at = now
        self.pass_s += (WEIGHT if self.pass_s else 1.0) * (pass_s - self.pass_s)

    def last_call(self, rtt_s: float) -> float:
        """When a frame must leave to arrive before the pass that began with the last commit ends."""
        return self._at + self.pass_s - rtt_s

    def in_time(self, end: float, rtt_s: float) -> bool:
        """Whether what leaves at `end` arrives before the next pass begins; nothing is late while no pass is known."""
        return not self.pass_s or end <= self.last_call(rtt_s)

    def holds(self, since: float, end: float, rtt_s: float) -> bool:
        """Whether nodes that have waited since then may wait until `end`, when the next draft step is over."""
        return end <= min(since + MAX_HOLD * self.pass_s, self.last_call(rtt_s))
