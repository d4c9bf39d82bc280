"""Policy `wanspec`: WANSpec's Algorithm 1.

    repeat
        token_tree.append(receive_speculations())                     received()
        if token_tree.depth >= k:                                     decide() -> Verify
            result = step_target_model(); send(result)
            token_tree.update(result)
            if result.length < k + 1: t_update = now                  verified()
            else if result.entropy > phi: t_update = now
        else if t_update + R > now: token_tree.update(step_draft())   decide() -> Draft
    until EOS

The engine and the simulator call the same objects. Seconds and nats throughout.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from cloud_gateway.core.policies.alone import LocalChain
from cloud_gateway.core.policies.policy import (
    Action,
    CatchUp,
    Costs,
    Draft,
    LinkView,
    Outcome,
    Policy,
    Verify,
    Wait,
)
from cloud_gateway.core.policies.settings import DEFAULTS, PolicySettings
from cloud_gateway.core.verify.candidates import CandidateTree, Merged

UNSET_PHI = 2.0
"""φ while the operator sets none: it suits small models, whose entropy is above WANSpec's 0.5 at most positions."""


@dataclass(slots=True)
class WanSpec(Policy):
    """Algorithm 1, and what it needs to stand in a real network.

    To the letter while the worker answers in time, catch-up in limited batches (section 4.5) and steps 4 and 5 of the
    example in section 5.3 included. Beyond the letter: *no worker*: standard speculative decoding with the same k.
    *Worker still reading the prompt*: bare target steps, unless a local step is as cheap. *Late*: when nothing came by
    the time it was due, the worker is taken for lost until it speaks again.
    """

    name = "wanspec"
    uses_k = True
    uses_phi = True
    settings: PolicySettings = DEFAULTS
    k: int = field(init=False)
    fallbacks: int = field(default=0, init=False)
    _t_update: float = field(default=float("-inf"), init=False)
    _commits: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=32), init=False)
    """Last committed position and time of the latest commits, oldest first."""
    _last_useful: float = field(default=float("-inf"), init=False)
    _waits_since: float | None = field(default=None, init=False)
    _late: bool = field(default=False, init=False)
    _drafting: bool = field(default=False, init=False)
    _local: LocalChain = field(init=False)
    _phi: float = field(init=False)

    def __post_init__(self) -> None:
        if self.settings.phi == "learnt":
            self._phi = UNSET_PHI
        else:
            self._phi = self.settings.phi
        self._local = LocalChain(self.settings.k)
        self.k = self.settings.k

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """Algorithm 1's loop body."""
        if tree.depth() >= self.k:
            return self._verify(tree)
        if link is None:
            return self._local.draft(tree, costs)
        if not link.ready:
            cheap = costs.local_s <= costs.verify_s(1)
            if cheap:
                return self._local.draft(tree, costs)
            return self._verify(tree)

        if self._waits_since is None:
            self._waits_since = now
        due = self._due(link)
        if self._t_update + link.rtt_s > now and not self._late:
            return self._meanwhile(tree, costs, now, due)

        lateness = max(due, self._waits_since) + (self.k - tree.depth()) * link.step_s + self._patience(link)
        if now >= lateness or self._late:
            self._late = True
            self._fall_back()
            return self._local.draft(tree, costs)

        self._drafting = False
        return Wait(lateness)

    def _meanwhile(self, tree: CandidateTree, costs: Costs, now: float, due: float) -> Action:
        """The worker is on another path: step_draft_model(), after as many batches of catch-up as it needs (4.5).
        Without a local draft target steps fill the time, as far as they end before the worker is back."""
        if costs.local_step_s is None:
            if now + costs.verify_s(len(tree.tree) + 1) <= due:
                return self._verify(tree)
            return Wait(due)
        self._fall_back()
        if costs.local_backlog_s > costs.batch_backlog_s:
            return CatchUp()
        return Draft((tree.best_leaf(),))

    def _due(self, link: LinkView) -> float:
        """When the next usable token is expected."""
        return max(self._t_update + link.rtt_s + link.step_s, self._last_useful + link.step_s)

    def _patience(self, link: LinkView) -> float:
        """Seconds beyond the expected time after which the worker counts as late."""
        return max(link.rtt_high_s - link.rtt_s, 0.0) + 2 * link.step_s

    def _fall_back(self) -> None:
        """Counts the first local draft of a wait."""
        self.fallbacks += not self._drafting
        self._drafting = True

    def _verify(self, tree: CandidateTree) -> Verify:
        return Verify(tree.best(self.settings.verify_nodes, self.settings.depth))

    def received(self, merged: Merged, now: float) -> None:
        """A frame on the committed path ends lateness; one that shows the worker off it marks it out of date.

        The second is steps 4 and 5 of the example in section 5.3, which the printed algorithm leaves out. The worker
        is put right by the commit that it had not seen, so the round trip counts from when that was sent.
        """
        if merged.diverged_at >= 0:
            sent = (time for position, time in self._commits if position > merged.diverged_at)
            self._t_update = max(self._t_update, next(sent, self._t_update))
        elif merged.useful:
            self._last_useful = now
            self._waits_since = None
            self._late = False
            self._drafting = False

    def verified(self, outcome: Outcome, now: float) -> None:
        """A result shorter than the path, or a high-entropy last token, marks the worker out of date."""
        self._waits_since = None
        self._commits.append((outcome.position, now))
        unsure = outcome.entropy is not None and outcome.entropy > self._phi
        if unsure or self._mismatch(outcome.emitted, at_leaf=outcome.at_leaf):
            self._t_update = now

    def needs_entropy(self, tree: CandidateTree, *, emitted: int, at_leaf: bool) -> bool:
        """Only after a full result: a shorter one marks the worker out of date at any entropy."""
        return not self._mismatch(emitted, at_leaf=at_leaf)

    def _mismatch(self, emitted: int, *, at_leaf: bool) -> bool:
        """Whether the result was shorter than the path."""
        return emitted < self.k + 1 or not at_leaf
