"""Bounds on one round of one request, whatever its policy decides: passes of the local draft, and time."""

from __future__ import annotations

from cloud_gateway.core.policies.actions import Action, Verify, Wait
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.protocol.messages import MAX_MICROS

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


class RoundTimes:
    """What a worker is sent about the latest round: its period and its pass, in whole microseconds."""

    def __init__(self) -> None:
        self.period_us = self.pass_us = 0
        self._began: float | None = None
        self._ended: float | None = None

    def begins(self, now: float) -> None:
        """A pass over candidates begins."""
        self._began = now

    def ended(self, now: float) -> None:
        self.period_us = micros(0.0 if self._ended is None else now - self._ended)
        self.pass_us = min(micros(0.0 if self._began is None else now - self._began), self.period_us or MAX_MICROS)
        self._ended = now


def micros(seconds: float) -> int:
    """Whole microseconds as the wire takes them."""
    return round(min(max(0.0, seconds), MAX_MICROS / 1e6) * 1e6)  # in this order not-a-number counts as 0
