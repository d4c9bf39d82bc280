"""Co-located speculation: the gateway drafts alone, a chain or a tree."""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud_gateway.core.policies.alone import LocalChain
from cloud_gateway.core.policies.policy import Action, Costs, Draft, LinkView, Outcome, Policy, Verify
from cloud_gateway.core.policies.settings import DEFAULTS, PolicySettings
from cloud_gateway.core.verify.candidates import CandidateTree

CHEAP = 1.3
"""Longest step over several leaves that counts as one over a single leaf, relative to that."""


@dataclass(slots=True)
class Colocated(Policy):
    """Standard speculative decoding on the gateway alone: k local draft steps, one verify."""

    name = "colocated"
    asks_workers = False
    uses_k = True
    settings: PolicySettings = DEFAULTS
    _chain: LocalChain = field(init=False)

    def __post_init__(self) -> None:
        self._chain = LocalChain(self.settings.k)

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """Drafts until the tree is k deep, then verifies a chain; `link` is ignored."""
        if tree.depth() >= self._chain.k:
            return self._chain.verify(tree)
        return self._chain.draft(tree, costs)

    def reads_prompt(self, costs: Costs, *, worker: bool) -> bool:
        """Always: nobody else drafts."""
        return True


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
        leaves = tree.tree.most_probable(min(self.sequences, _cheap_leaves(costs)), deepest)
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


def _cheap_leaves(costs: Costs) -> int:
    """Leaves up to which a local step takes hardly longer than over one."""
    cheap = [leaves for leaves, seconds in costs.local_points if seconds <= CHEAP * costs.draft_s(1)]
    return min(max(cheap, default=costs.local_leaves), costs.local_leaves)
