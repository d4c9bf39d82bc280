"""Policy `adaptive`: decides by expected time (design section 7; docs/policies.md tells how it came about).

At every free moment it compares what it can have now with what the worker will bring, and when:

    while nothing of use is at hand
        useful candidates are due soon                    wait
        they are due late, and a local pass pays          draft: the likeliest leaves in one batch, four children each
    while drafting, another level pays                    draft on
    else                                                  verify as many candidates as are worth their cost, none
                                                          included: a bare step yields a token and costs the worker
                                                          nothing, since it goes on drafting meanwhile

A pass pays when the tokens that it is expected to add, at the going price per token, exceed its own time and the
operator's price of a pass. The price of a pass is the one at which mixing local and remote drafting saves most time
per pass; a budget limits how often it is paid.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cloud_gateway.core.actions import Action, CatchUp, Costs, Draft, LinkView, Outcome, Verify, Wait
from cloud_gateway.core.budget import Budget, Prices
from cloud_gateway.core.merge import CandidateTree, Merged
from cloud_gateway.core.outlook import Outlook, Surveyor
from cloud_gateway.core.timeline import Timeline
from edgespec.core.calibration import Calibrator

Prefer = Literal["latency", "balanced", "offload"]

SHARES = {"balanced": 0.42, "offload": 0.0}
"""Local passes, relative to co-located k = 2, that are made even when the answer is not behind."""
WAIT_SHARE = 0.1
"""Longest wait for useful candidates, as a share of a target step."""
STALL_SHARE = 0.5
"""Of a round trip: candidates due sooner are not drafted here too, where passes have a price."""
STALL_STEPS = (1.5, 2.0)
"""Least and greatest value of that limit, in target steps."""
LATENCY_STEPS = 0.2
"""The limit where passes are free, in target steps."""
SURE = 0.12
"""What the expected gain of a local step is overrated by: its leaves are not all that the target may take."""
LOSS_PRIOR, LOSS_WEIGHT = 0.07, 60
"""Losses of the worker's path per token, and the tokens that this first guess counts for."""
MAX_RUN = 8
"""Local levels in a row."""


@dataclass(slots=True)
class Adaptive:
    """See the module's text."""

    prefer: Prefer = "balanced"
    sequences: int = 16
    """Leaves of one local pass."""
    width: int = 4
    verify_nodes: int = 32
    share: float | None = None
    """Local passes allowed, relative to co-located k = 2; None: as `prefer` says."""
    calibrator: Calibrator = field(default_factory=Calibrator)
    name: str = field(default="adaptive", init=False)
    fallbacks: int = field(default=0, init=False)
    drafts_from_start: bool = field(default=False, init=False)
    _surveyor: Surveyor = field(init=False)
    _timeline: Timeline = field(default_factory=Timeline, init=False)
    _budget: Budget | None = field(default=None, init=False)
    _run: int = field(default=0, init=False)
    _tokens: int = field(default=0, init=False)
    _debt_paid: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._surveyor = Surveyor(self.calibrator)
        share = SHARES.get(self.prefer) if self.share is None else self.share
        self._budget = None if share is None else Budget(share)

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """The rules of the module's text, in their order."""
        position = tree.root.position
        if not self._timeline.started:
            self._timeline.start(position, now)
        outlook = self._surveyor.look(tree, min(self.sequences, costs.local_leaves), self.width)
        prices = self._price(link, costs)
        stall = float("inf") if link is None else self._timeline.due(self._missing(outlook, position), link, now) - now
        if self._drafts(outlook, stall, prices, link, costs, now):
            return self._draft(outlook, costs)
        if not outlook.nodes and 0 < stall <= WAIT_SHARE * costs.verify_s(1):
            return Wait(now + stall)
        return Verify(outlook.worth(costs.verify_s, prices.token_s, self.verify_nodes))

    def _drafts(
        self, outlook: Outlook, stall: float, prices: Prices, link: LinkView | None, costs: Costs, now: float
    ) -> bool:
        """Whether another local level pays."""
        step = costs.local_step_s
        if step is None or self._run >= MAX_RUN:
            return False
        gain = self._surveyor.named * outlook.open_mass - SURE
        if outlook.nodes and gain * prices.token_s <= step + prices.pass_s:
            return False
        if self._run:
            return True
        if link is not None and stall <= self._patience(link, costs):
            return False
        return self._budget is None or self._budget.allows(prices, now)

    def _missing(self, outlook: Outlook, position: int) -> int:
        """The first level that the worker would have to add to what is at hand."""
        if not outlook.nodes:
            return position + 1
        return position + 2 if self._timeline.lost else max(self._timeline.frontier, position) + 1

    def _patience(self, link: LinkView, costs: Costs) -> float:
        """The stall from which it drafts itself."""
        target = costs.verify_s(1)
        if self._budget is None:
            return LATENCY_STEPS * target
        return min(max(STALL_SHARE * link.rtt_s, STALL_STEPS[0] * target), STALL_STEPS[1] * target)

    def _draft(self, outlook: Outlook, costs: Costs) -> Action:
        if costs.local_debt_s > costs.batch_debt_s:  # a long catch-up alternates with target steps
            self._debt_paid = not self._debt_paid
            return CatchUp() if self._debt_paid else Verify(())
        self.fallbacks += not self._run
        self._run += 1
        if self._budget is not None:
            self._budget.spend()
        return Draft(tuple(outlook.leaves), self.width)

    def _price(self, link: LinkView | None, costs: Costs) -> Prices:
        losses = (self._timeline.losses + LOSS_PRIOR * LOSS_WEIGHT) / (self._tokens + LOSS_WEIGHT)
        return Prices.of(link, costs, self._surveyor.match, self._surveyor.named, losses, free=self._budget is None)

    def received(self, merged: Merged, now: float) -> None:
        """What the frame shows of the worker's whereabouts."""
        self._timeline.frame(merged, now)

    def verified(self, outcome: Outcome, now: float) -> None:
        """A round ended."""
        self._run = 0
        self._tokens += outcome.emitted
        if self._budget is not None:
            self._budget.earn(outcome.emitted)
        self._timeline.committed(outcome.position, now, on_path=outcome.at_leaf)
