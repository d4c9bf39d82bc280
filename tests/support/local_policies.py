"""Policies that draft at the gateway alone, for tests of what drafts: the core has none, and parts can be removed.

Engines of `tests.support.engines` know them beside the core's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud_gateway.core.policies.alone import LocalChain
from cloud_gateway.core.policies.policy import Action, Costs, Draft, LinkView, Outcome, Policy, Verify
from cloud_gateway.core.policies.registry import POLICIES, Policies
from cloud_gateway.core.policies.settings import DEFAULTS, PolicySettings
from cloud_gateway.core.verify.candidates import CandidateTree


class Local(Policy):
    """A policy without a worker, whose local draft reads each prompt before the first token."""

    asks_workers = False

    def reads_prompt(self, costs: Costs, *, worker: bool) -> bool:
        return True


@dataclass
class Chain(Local):
    """Drafts k tokens, then verifies them."""

    name = "local-chain"
    settings: PolicySettings = DEFAULTS

    def __post_init__(self) -> None:
        self.chain = LocalChain(self.settings.k)

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        if tree.depth() >= self.chain.k:
            return self.chain.verify(tree)
        return self.chain.draft(tree, costs)


@dataclass
class Wide(Local):
    """Drafts four children of each of the likeliest leaves, k times, then verifies."""

    name = "local-tree"
    settings: PolicySettings = DEFAULTS
    passes: int = field(default=0, init=False)

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        k = self.settings.k
        leaves = tree.tree.most_probable(min(16, costs.local_leaves), tree.root.position + k)
        if costs.local_step_s is None or tree.depth() >= k or self.passes >= k or not leaves:
            return Verify(tree.best(self.settings.verify_nodes))

        self.passes += 1
        return Draft(tuple(leaves), 4)

    def verified(self, outcome: Outcome, now: float) -> None:
        self.passes = 0


WITH_LOCAL: Policies = {**POLICIES, "local-chain": Chain, "local-tree": Wide}
"""The policies of the core, and these."""
