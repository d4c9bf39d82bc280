"""Where the worker is, and when its next useful level is due: from its frames and from what was sent to it.

A worker on the committed path delivers one level per draft step. When the target leaves the worker's tree, nothing is
useful until a round trip after the commit with it (WANSpec section 4.1). Frames under way when that happens are useless
too, and Algorithm 1 as printed does not notice; `Merged.diverged_at` and a walk that ended beside known candidates do.

After a token that nobody had proposed yet (an open leaf), only a later frame shows where the worker is. Until then the
target's entropy for that token says how likely it is on the path (entropy.py).
"""

from __future__ import annotations

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


class SentCommit(NamedTuple):
    """Tokens that were sent to the worker."""

    position: int
    """Of the last of them."""
    sent_s: float


class Expected(NamedTuple):
    """The next useful level, which comes with this probability."""

    chance: float
    at_s: float
    """When it is waited for no longer: when it is due or, if it is overdue, after the patience for it."""


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
        self._commits: deque[SentCommit] = deque(maxlen=REMEMBERED)
        self.frontier = -1
        """Deepest position that the worker is known to have right or among the candidates."""
        self._reached_s = 0.0
        """When the frontier was reached or, while `diverged`, when the commit that corrects the worker was sent."""
        self.diverged = True
        self.hits = 0.0
        """Committed tokens that the worker's tree held, as frames and walks have shown."""
        self.divergences = 0.0
        """Committed tokens that it lacked, as frames and walks have shown."""
        self._level_s = Ewma(0.1)
        """Time between levels on the committed path, which is longer than a step if the worker tries other branches,
        is held up, or gets little of its machine."""
        self.odds = PathOdds()
        self.open: OpenLeaf | None = None
        """The latest open leaf, until a frame has shown where the worker was."""

    @property
    def stay_rate(self) -> float:
        """Probability that the target stays in the worker's tree for one more token."""
        prior = self.tuning.prior_tokens
        return (self.hits + self.tuning.stay_rate * prior) / (self.hits + self.divergences + prior)

    def start(self, position: int, now: float) -> None:
        """The worker was given the prefix that ends at `position`."""
        self._commits.append(SentCommit(position, now))
        self.frontier = position
        self._reached_s = now
        self.diverged = True

    def committed(self, position: int, hits: int, now: float, *, on_path: bool) -> None:
        """Tokens up to `position` were sent, of which so many were the workers' candidates. `on_path`: False if workers
        had candidates in place of the last of them."""
        self._commits.append(SentCommit(position, now))
        self.hits += hits
        if not on_path and not self.diverged:
            self._diverge(position - 1)

    def left_open(self, position: int, entropy: float, link: LinkView, now: float) -> None:
        """The walk to `position` ended at an open leaf, after `committed`.

        A worker on the path brings the next level within one level's time. What the frontier counted below other leaves
        is not on the path.
        """
        self.frontier = position
        self._reached_s = now
        self.open = OpenLeaf(position, entropy, now, now + link.rtt_s + link.step_s / 2)

    def frame(self, merged: Merged, now: float) -> None:
        """A frame was merged."""
        if self.open is not None:
            self._answer(self.open, merged, now)

        if merged.useful and merged.reached > self.frontier:
            if self._commits:  # a frame may come before the first decision
                # Tokens that the worker was sent are not its hits.
                known = max(self.frontier, merged.base)
                self.hits += max(min(merged.reached, self._commits[-1].position) - known, 0)
            if not self.diverged:
                self._level_s.sample((now - self._reached_s) / (merged.reached - self.frontier))
            self.frontier = merged.reached
            self._reached_s = now
            self.diverged = False

        if merged.diverged_at >= self.frontier:
            self._diverge(merged.diverged_at)

    def _answer(self, leaf: OpenLeaf, merged: Merged, now: float) -> None:
        """Counts the open leaf if this frame shows where the worker was."""
        if merged.diverged_at == leaf.position - 1:
            on_path = False
        elif merged.diverged_at >= leaf.position:
            on_path = True
        elif merged.useful and merged.reached >= leaf.position:
            # A later frame may have been begun after the commit that corrected the worker.
            on_path = now < leaf.corrected_s
        else:
            return

        self.odds.observe(leaf.entropy, on_path=on_path)
        self.open = None
        if merged.diverged_at == leaf.position - 1:
            self._diverge(merged.diverged_at)

    def _diverge(self, last_right: int) -> None:
        """The worker lacks the token after `last_right`; the first commit that contains it corrects the worker."""
        self.diverged = True
        self.open = None
        self.divergences += 1
        for commit in self._commits:
            if commit.position > last_right:
                self.frontier = commit.position
                self._reached_s = commit.sent_s
                return

    def state(self) -> list[float]:
        """The worker's pace, hits and divergences, as plain numbers."""
        scale = min(1.0, self.tuning.first_interval / max(self.hits + self.divergences, 1.0))
        return [self._level_s.value or 0.0, self.hits * scale, self.divergences * scale]

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state with another completion."""
        level_s, self.hits, self.divergences = state
        if level_s > 0:
            self._level_s.sample(level_s)

    def level_s(self, link: LinkView) -> float:
        """Seconds until the worker's next level once it is on the committed path."""
        return max(self._level_s.value or 0.0, link.step_s)

    def expect(self, position: int, link: LinkView, now: float) -> Expected | None:
        """The level at `position`; None if the worker is overdue, so that nothing is expected before a frame comes."""
        levels = max(position - self.frontier, 1)
        level_s = self.level_s(link)
        due_s = self._reached_s + levels * level_s

        # A round trip, half a step on average until the worker sees the commit, and the step of the next level.
        corrected_s = link.rtt_s + 1.5 * link.step_s

        # 1. The worker is on another path: it comes a round trip after the commit, and one step a level.
        if self.diverged:
            due_s = self._reached_s + corrected_s + (levels - 1) * level_s
            return self._first([Expected(1.0, due_s)], link, now)

        # 2. It streams: useful if its tree covers each committed token that it has not received. If it does not, the
        # first of these tokens corrects it.
        unsent = [commit for commit in self._commits if commit.position > self.frontier]
        covered = self.stay_rate ** max(self._commits[-1].position - self.frontier, 0)
        corrects_s = [commit.sent_s for commit in unsent[:1]]

        # 3. After an open leaf, the leaf's entropy says how likely the worker has it.
        if self.open is not None:
            covered *= self.odds.chance(self.open.entropy)
            corrects_s = [self.open.sent_s]

        later = [Expected(1.0, sent_s + corrected_s) for sent_s in corrects_s]
        return self._first([Expected(covered, due_s), *later], link, now)

    def _first(self, expected: Sequence[Expected], link: LinkView, now: float) -> Expected | None:
        """The first of these that may still come: a frame may be late by a round trip's variation or two levels."""
        patience_s = max(link.rtt_high_s - link.rtt_s, 2 * self.level_s(link))
        for chance, due_s in expected:
            if now < due_s:
                return Expected(chance, due_s)
            if now < due_s + patience_s:
                return Expected(chance, due_s + patience_s)
        return None
