"""The arms beside which the others are measured: plain decoding, co-located speculation and AMUSD.

Co-located speculation drafts a chain or a tree (SpecInfer) at the gateway alone. A tree is worth much by itself, so
that a gain of the tree must not read as a gain of the network.

AMUSD's Algorithm 1 (McDanel 2024) has two devices that never take turns:

    verify process: whenever p_d > p_v, verify D[p_v : p_d]; on a mismatch set R and wait for the draft's roll-back

The draft process is the worker with b = 1, which drafts on while the target verifies and rolls back when a commit
leaves its path. The controller only has to verify whatever has arrived. Beyond the letter: a worker that stays silent
for long is not waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud_gateway.core.policies.policy import Action, CatchUp, Costs, Draft, LinkView, Outcome, Policy, Verify, Wait
from cloud_gateway.core.policies.settings import DEFAULTS, PolicySettings
from cloud_gateway.core.verify.candidates import CandidateTree, Merged


@dataclass(slots=True)
class Plain(Policy):
    """Plain decoding: one token a pass."""

    name = "plain"
    asks_workers = False
    settings: PolicySettings = DEFAULTS

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        return Verify(())


@dataclass(slots=True)
class Colocated(Policy):
    """Standard speculative decoding on the gateway alone: k local draft steps, one verify."""

    name = "colocated"
    asks_workers = False
    uses_k = True
    settings: PolicySettings = DEFAULTS
    k: int = field(init=False)
    _caught_up_last: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.k = self.settings.k

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """Drafts until the tree is k deep, then verifies a chain; `link` is ignored."""
        if tree.depth() >= self.k:
            return self._verify(tree)
        return self.draft(tree, costs)

    def reads_prompt(self, costs: Costs, *, worker: bool) -> bool:
        """Always: nobody else drafts."""
        return True

    def draft(self, tree: CandidateTree, costs: Costs) -> Action:
        """The next local step. A long catch-up alternates with target steps, so that no gap exceeds one batch."""
        if costs.local_step_s is None:
            return self._verify(tree)
        if costs.local_backlog_s <= costs.batch_backlog_s:
            return Draft((tree.best_leaf(),))
        self._caught_up_last = not self._caught_up_last
        if self._caught_up_last:
            return CatchUp()
        return self._verify(tree)

    def _verify(self, tree: CandidateTree) -> Verify:
        return Verify(tree.best(self.k, self.k))


@dataclass(slots=True)
class ColocatedTree(Policy):
    """k local passes over the likeliest `sequences` leaves, `width` children each; then one verify.

    Fewer where the candidates that the last verify left are k deep already, or where nothing is left to expand.
    """

    name = "colocated-tree"
    asks_workers = False
    uses_k = True
    settings: PolicySettings = DEFAULTS
    sequences: int = 16
    width: int = 4
    _passes: int = field(default=0, init=False)

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """Drafts k times, then verifies the likeliest nodes; `link` is ignored.

        The likeliest leaves may all be shallow, so the depth alone would not end the round.
        """
        k = self.settings.k
        deepest = tree.root.position + k
        leaves = tree.tree.most_probable(min(self.sequences, costs.cheap_leaves), deepest)
        if costs.local_step_s is None or tree.depth() >= k or self._passes >= k or not leaves:
            return Verify(tree.best(self.settings.verify_nodes))

        self._passes += 1
        return Draft(tuple(leaves), self.width)

    def reads_prompt(self, costs: Costs, *, worker: bool) -> bool:
        """Always: nobody else drafts."""
        return True

    def verified(self, outcome: Outcome, now: float) -> None:
        """Starts counting passes from zero."""
        self._passes = 0


SILENT_STEPS = 4
"""Draft steps without a candidate, beyond a round trip, after which the target goes on alone."""


@dataclass(slots=True)
class Amusd(Policy):
    """Verifies all that was drafted as soon as there is anything; never drafts itself."""

    name = "amusd"
    settings: PolicySettings = DEFAULTS
    _waits_since: float | None = field(default=None, init=False)

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        if tree.depth() > 0:
            return Verify(tree.best(self.settings.verify_nodes))
        if link is None:
            return Verify(())

        if self._waits_since is None:
            self._waits_since = now
        silent = self._waits_since + link.rtt_high_s + SILENT_STEPS * link.step_s
        if now < silent:
            return Wait(silent)
        return Verify(())

    def received(self, merged: Merged, now: float) -> None:
        if merged.useful:
            self._waits_since = None

    def verified(self, outcome: Outcome, now: float) -> None:
        self._waits_since = None
