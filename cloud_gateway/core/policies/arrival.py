"""Where the worker is, and when its next useful level is due: from its frames and from what was sent to it.

A worker on the committed path delivers one level per draft step. When the target leaves the worker's tree, nothing is
useful until a round trip after the commit with it (WANSpec section 4.1). Frames under way when that happens are useless
too, and Algorithm 1 as printed does not notice; `Merged.diverged_at` and a walk that ended beside known candidates do.

After a token that nobody had proposed yet (an open leaf), only a later frame shows where the worker is. Until then the
target's entropy for that token says how likely it is on the path (entropy.py).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from cloud_gateway.core.policies.entropy import PathOdds
from cloud_gateway.core.policies.estimators import Ewma
from cloud_gateway.core.policies.policy import LinkView
from cloud_gateway.core.policies.tuning import TUNING, Tuning
from cloud_gateway.core.verify.candidates import Merged

REMEMBERED = 64
"""Commits whose time is kept; more are never under way."""
NEVER = 1e9
"""Seconds that stand for a moment which does not come."""


class Expected(NamedTuple):
    """The next useful level: with probability `chance` in `soon_s`, otherwise in `late_s`."""

    chance: float
    soon_s: float
    late_s: float
    grace_s: float = 0.0
    """How much later than `soon_s` it may well be."""


class OpenLeaf(NamedTuple):
    """A committed token of which no frame has shown yet whether the worker drafted it."""

    position: int
    entropy: float
    """Nats, of the target's distribution for the token."""
    sent_s: float
    """When the token was committed."""
    corrected_s: float
    """When the first frame may arrive that a worker on another path begins after it received the token."""


class Timeline:
    """One request's worker. Positions are indices in prompt + completion, times seconds."""

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self.tuning = tuning
        self._commits: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)
        self.frontier = -1
        """Deepest position that the worker is known to have right or among the candidates."""
        self._since = 0.0
        """When the frontier was reached or, while `lost`, when the commit that ends it was sent."""
        self.lost = True
        self.hits = self.divergences = 0.0
        """Committed tokens that the worker's tree held, and divergences: only where a frame or a walk has shown it."""
        self._level_s = Ewma(0.1)
        """Time between levels on the committed path, which is longer than a step where the worker tries other branches,
        is held up, or gets little of its machine."""
        self.odds = PathOdds()
        self.open: OpenLeaf | None = None
        """The latest open leaf, until a frame has shown where the worker was."""

    @property
    def kept(self) -> float:
        """Probability that the target stays in the worker's tree for one more token."""
        prior = self.tuning.prior_tokens
        return (self.hits + self.tuning.kept * prior) / (self.hits + self.divergences + prior)

    def start(self, position: int, now: float) -> None:
        """The worker was given the prefix that ends at `position`."""
        self._commits.append((position, now))
        self.frontier, self._since, self.lost = position, now, True

    def committed(self, position: int, hits: int, now: float, *, on_path: bool) -> None:
        """Tokens up to `position` were sent, of which so many were the workers' candidates. `on_path`: False if workers
        had candidates in place of the last of them."""
        self._commits.append((position, now))
        self.hits += hits
        if not on_path and not self.lost:
            self._lose(position - 1)

    def left_open(self, position: int, entropy: float, link: LinkView, now: float) -> None:
        """The walk to `position` ended at an open leaf, after `committed`.

        A worker on the path brings the next level within one level's time. What the frontier counted below other leaves
        is not on the path.
        """
        self.frontier = position
        self._since = now
        self.open = OpenLeaf(position, entropy, now, now + link.rtt_s + link.step_s / 2)

    def _answer(self, leaf: OpenLeaf, merged: Merged, now: float) -> None:
        """Counts the open leaf if this frame shows where the worker was."""
        if merged.diverged_at == leaf.position - 1:
            on_path = False
        elif merged.diverged_at >= leaf.position:
            on_path = True
        elif merged.useful and merged.reached >= leaf.position:
            # A later frame may have been begun after the commit that put the worker right.
            on_path = now < leaf.corrected_s
        else:
            return

        self.odds.observe(leaf.entropy, on_path=on_path)
        self.open = None
        if merged.diverged_at == leaf.position - 1:
            self._lose(merged.diverged_at)

    def frame(self, merged: Merged, now: float) -> None:
        """A frame was merged."""
        if self.open is not None:
            self._answer(self.open, merged, now)
        if merged.useful and merged.reached > self.frontier:
            if self._commits:  # a frame may come before the first decision
                # Tokens that the worker was sent are no hits of its own.
                known = max(self.frontier, merged.base)
                self.hits += max(min(merged.reached, self._commits[-1][0]) - known, 0)
            if not self.lost:
                self._level_s.sample((now - self._since) / (merged.reached - self.frontier))
            self.frontier, self._since, self.lost = merged.reached, now, False
        if merged.diverged_at >= self.frontier:
            self._lose(merged.diverged_at)

    def _lose(self, last_right: int) -> None:
        """The worker lacks the token after `last_right`; the first commit that contains it puts it right."""
        self.lost = True
        self.open = None
        self.divergences += 1
        for position, when in self._commits:
            if position > last_right:
                self.frontier, self._since = position, when
                return

    def state(self) -> list[float]:
        """The worker's pace, hits and divergences, as plain numbers."""
        scale = min(1.0, self.tuning.carried / max(self.hits + self.divergences, 1.0))
        return [self._level_s.value or 0.0, self.hits * scale, self.divergences * scale]

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state with another completion."""
        level_s, self.hits, self.divergences = state
        if level_s > 0:
            self._level_s.sample(level_s)

    def level_s(self, link: LinkView) -> float:
        """Seconds until the worker's next level once it is on the committed path."""
        return max(self._level_s.value or 0.0, link.step_s)

    def expect(self, position: int, link: LinkView, now: float) -> Expected:
        """The level at `position`. While the worker is lost: a round trip after the commit, the step under way there,
        and one step a level. Else one step a level, useful if its tree covers each committed token not sent yet: the
        open leaf's as likely as its entropy says, each other one as likely as most."""
        levels, level = max(position - self.frontier, 1), self.level_s(link)
        right_s = link.rtt_s + 1.5 * link.step_s
        if self.lost:
            return self._overdue(1.0, self._since + right_s + (levels - 1) * level, NEVER, link, now)
        unknown = max(self._commits[-1][0] - self.frontier, 0)
        sent = next((when for place, when in self._commits if place > self.frontier), NEVER) if unknown else NEVER
        covered = self.kept**unknown
        if self.open is not None:
            covered *= self.odds.chance(self.open.entropy)
            sent = self.open.sent_s
        return self._overdue(covered, self._since + levels * level, sent + right_s, link, now)

    def _overdue(self, chance: float, soon: float, late: float, link: LinkView, now: float) -> Expected:
        """Lateness is taken to be exponential: what is overdue takes its mean again, and the longer it is overdue, the
        less likely it is to come (Bayes' rule). Where the late moment has passed as well, nothing is sure to come."""
        mean, sure = max((link.rtt_high_s - link.rtt_s) / 4, 0.3 * self.level_s(link)), self.tuning.certain
        late_s = max(late - now, mean)
        if now <= soon:
            return Expected(chance, soon - now, late_s, mean)
        chance = min(chance, sure)
        if now > late:
            chance, soon, late_s = sure, max(soon, late), NEVER
        comes = chance * math.exp(-(now - soon) / mean)
        left = comes / (comes + 1 - chance)
        return Expected(left, mean, late_s, mean) if left >= 1 - sure else Expected(1.0, late_s, NEVER, mean)
