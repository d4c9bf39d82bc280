"""Bounds on one round of one request, whatever its policy decides: passes of the local draft, and time."""

from __future__ import annotations

from cloud_gateway.core.policies.actions import Action, Verify, Wait
from cloud_gateway.core.verify.candidates import CandidateTree

MAX_LOCAL_PASSES = 32
"""Local draft passes between two verify passes. The deepest policy asks for 16 (k of the API's schema)."""
MAX_ROUND_S = 2.0
"""Longest time of drafting and waiting before a verify pass; round trips worth waiting for are far shorter."""


class RoundBudget:
    """Passes on what a policy decides until the round has used its passes or its time; then it verifies."""

    def __init__(self, verify_nodes: int) -> None:
        """`verify_nodes`: most candidates of the verify pass that ends such a round."""
        self._verify_nodes = verify_nodes
        self._began: float | None = None
        self.passes = 0

    def bound(self, action: Action, tree: CandidateTree, now: float) -> Action:
        """The action, or a verify pass over the likeliest candidates where the budget is used up."""
        if isinstance(action, Verify):
            return action
        if self._began is None:
            self._began = now
        deadline = self._began + MAX_ROUND_S
        if now >= deadline:
            return Verify(tree.best(self._verify_nodes))
        if isinstance(action, Wait):
            return action if action.until < deadline else Wait(deadline)  # written so that NaN is bounded too
        if self.passes >= MAX_LOCAL_PASSES:
            return Verify(tree.best(self._verify_nodes))
        self.passes += 1
        return action

    def verified(self) -> None:
        """The round has ended."""
        self._began, self.passes = None, 0
