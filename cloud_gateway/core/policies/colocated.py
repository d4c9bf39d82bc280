"""Policy `colocated-tree`: the gateway alone with a tree instead of a chain (SpecInfer), the fair arm beside ours.

A tree is worth much by itself, so a gain of the tree must not read as a gain of the network.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud_gateway.core.policies.actions import Action, Costs, Draft, LinkView, Outcome, Verify
from cloud_gateway.core.policies.settings import DEFAULTS, PolicySettings
from cloud_gateway.core.verify.candidates import CandidateTree, Merged


@dataclass(slots=True)
class ColocatedTree:
    """k local passes over the likeliest `sequences` leaves, `width` children each; then one verify.

    Fewer where the candidates that the last verify left are k deep already, or where nothing is left to expand.
    """

    settings: PolicySettings = DEFAULTS
    sequences: int = 16
    width: int = 4
    name: str = field(default="colocated-tree", init=False)
    fallbacks: int = field(default=0, init=False)
    drafts_from_start: bool = field(default=True, init=False)
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

    def received(self, merged: Merged, now: float) -> None:
        """No worker is asked."""

    def verified(self, outcome: Outcome, now: float) -> None:
        """Starts counting passes from zero."""
        self._passes = 0
