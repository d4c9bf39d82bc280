"""What every policy does: decide the next action of one request, and say why. Seconds and nats throughout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from cloud_gateway.core.policies.actions import Action, Costs, LinkView, Outcome
from cloud_gateway.core.policies.memory import Learnt
from cloud_gateway.core.verify.candidates import CandidateTree, Merged
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.tree import Node


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """What a policy says of its decisions, for usage, metrics and log."""

    fallbacks: int = 0
    """Times that it began to draft at the gateway while a worker drafted too."""
    reason: str | None = None
    """Why it last drafted at the gateway; None if it never did, or does not say."""
    why_not_local: str | None = None
    """Why the local draft made no pass in the latest round that had a use for one; None if it made one."""


class Policy:
    """One request's policy. `decide` may be called at any time and as often as wanted."""

    __slots__ = ()
    name: ClassVar[str]
    asks_workers: ClassVar[bool] = True
    """Whether workers draft for its requests."""
    drafts_from_start: ClassVar[bool] = False
    """Whether the local draft reads the prompt before the first token, whatever that costs."""
    change: tuple[str, str] | None = None
    """The guard's new mode and its reason, if the latest decision changed it (guard.py)."""
    carried: Learnt | None = None
    """What it was resumed from, for the trace."""

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """What to do next. `link` is None while no worker drafts for this request."""
        raise NotImplementedError

    def withdrawn(self) -> None:
        """The draft pass of the latest decision is not made: it is asked again, at another price or after a fault."""

    def priced(self, leaves: Sequence[Node], proposals: Sequence[Proposal]) -> Sequence[Proposal]:
        """What the local draft proposes below these leaves, with the costs that its candidates have in the tree."""
        return proposals

    def received(self, merged: Merged, now: float) -> None:
        """A frame was merged."""

    def verified(self, outcome: Outcome, now: float) -> None:
        """A verify pass ended and its tokens were sent."""

    def reads_prompt(self, costs: Costs, *, worker: bool) -> bool:
        """Whether the local draft reads the prompt before the first token, with what is left to read in `costs`;
        `worker`: whether one drafts for the request."""
        return self.drafts_from_start

    def report(self, *, drafted: bool) -> PolicyReport:
        """What it says of itself; `drafted`: whether the local draft made a pass for the request."""
        return PolicyReport(why_not_local=None if drafted else f"policy {self.name} did not ask it")

    def resume(self, learnt: Learnt) -> None:
        """Starts with what earlier completions of the same kind taught (`state`); before the first decision."""

    def state(self) -> Learnt | None:
        """What the next completion of this kind starts with, as plain data; None if it learns nothing."""
        return None
