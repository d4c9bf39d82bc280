"""When the worker's next useful level is due, estimated from its frames and from what was sent to it.

A worker on the committed path delivers one level per draft step. When the target leaves the worker's tree, nothing is
useful until a round trip after the commit with it (WANSpec section 4.1). Finding: frames under way when
that happens are useless too, and Algorithm 1 as printed does not notice; `Merged.lost_at` and a walk that ended beside
known candidates do.
"""

from __future__ import annotations

from collections import deque

from cloud_gateway.core.policies.actions import LinkView
from cloud_gateway.core.verify.candidates import Merged

REMEMBERED = 64
"""Commits whose time is kept; more are never under way."""
OVERDUE_STEPS = 0.3
"""Share of a step by which a level may be late before it counts as overdue."""


class Timeline:
    """One request's worker. Positions are indices in prompt + answer, times seconds."""

    def __init__(self) -> None:
        self._commits: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)
        self.frontier = -1
        """Deepest position that the worker is known to have right or among the candidates."""
        self._since = 0.0
        """When the frontier was reached or, while `lost`, when the commit that ends it was sent."""
        self.lost = True
        self.losses = 0

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return bool(self._commits)

    def start(self, position: int, now: float) -> None:
        """The worker was given the prefix that ends at `position`."""
        self._commits.append((position, now))
        self.frontier, self._since, self.lost = position, now, True

    def committed(self, position: int, now: float, *, on_path: bool) -> None:
        """Tokens up to `position` were sent; `on_path` is False where the last of them was not among the candidates."""
        self._commits.append((position, now))
        if not on_path and not self.lost:
            self._lose(position - 1)

    def frame(self, merged: Merged, now: float) -> None:
        """A frame was merged."""
        informed = merged.prefix_len - 1 >= self.frontier
        if merged.reached >= 0 and (merged.reached >= self.frontier if not self.lost else informed):
            self.frontier, self._since, self.lost = merged.reached, now, False
        if merged.lost_at >= self.frontier and not self.lost:
            self._lose(merged.lost_at)

    def _lose(self, last_right: int) -> None:
        """The worker lacks the token after `last_right`; the first commit that contains it puts it right."""
        self.lost = True
        self.losses += 1
        for position, when in self._commits:
            if position > last_right:
                self.frontier, self._since = position, when
                return

    def due(self, position: int, link: LinkView, now: float) -> float:
        """When candidates for `position` are expected.

        While the worker is lost: a round trip after the commit, the step under way there, and one step a level. What
        is overdue will take about as long again: it may be held up, or the worker may be on other branches.
        """
        step = link.step_s
        if self.lost:
            expected = self._since + link.rtt_s + (position - self.frontier + 0.5) * step
            overdue = now - (self._since + link.rtt_s + 1.5 * step)
        else:
            expected = self._since + (position - self.frontier) * step
            overdue = now - (self._since + step)
        if overdue > OVERDUE_STEPS * step:
            return max(expected + overdue, now + max(overdue, 0.7 * step))
        return expected
