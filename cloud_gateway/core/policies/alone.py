"""Decoding at the gateway alone: plain steps, and chains of the local draft.

`wanspec` drafts a chain while no worker does. A policy that never does anything else is not among the core's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud_gateway.core.policies.policy import (
    Action,
    CatchUp,
    Costs,
    Draft,
    LinkView,
    Policy,
    Verify,
)
from cloud_gateway.core.policies.settings import DEFAULTS, PolicySettings
from cloud_gateway.core.verify.candidates import CandidateTree


@dataclass(slots=True)
class Plain(Policy):
    """Plain decoding: one token a pass."""

    name = "plain"
    asks_workers = False
    settings: PolicySettings = DEFAULTS

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        return Verify(())


@dataclass(slots=True)
class LocalChain:
    """Standard speculative decoding: k local draft steps, one verify. Policies call it for the next action."""

    k: int
    _caught_up_last: bool = field(default=False, init=False)

    def draft(self, tree: CandidateTree, costs: Costs) -> Action:
        """The next local step. A long catch-up alternates with target steps, so that no gap exceeds one batch."""
        if costs.local_step_s is None:
            return self.verify(tree)
        if costs.local_backlog_s <= costs.batch_backlog_s:
            return Draft((tree.best_leaf(),))

        self._caught_up_last = not self._caught_up_last
        if self._caught_up_last:
            return CatchUp()
        return self.verify(tree)

    def verify(self, tree: CandidateTree) -> Verify:
        """A pass over the likeliest chain, at most k deep."""
        return Verify(tree.best(self.k, self.k))
