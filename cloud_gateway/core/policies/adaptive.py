"""Policy `adaptive`: decides by expected time (docs/policies.md has its derivation).

At every free moment it compares what it can have now with what the worker will bring, and when:

    while no useful candidate is there
        useful candidates are due soon                    wait
        they are due late, and a local pass pays          draft: the likeliest leaves in one batch, four children each
    while drafting, another level pays                    draft on
    else                                                  verify as many candidates as are worth their cost, none
                                                          included: a plain step yields a token and costs the worker
                                                          nothing, since it goes on drafting meanwhile

A pass pays when the tokens that it is expected to add, at the going price per token, exceed its own time and the
operator's price of a pass. The price of a pass is the one at which mixing local and remote drafting saves most time
per pass; a budget limits how often it is paid. An answer that falls behind co-located k = 2 all the same is drafted
here until it has caught up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud_gateway.core.policies.actions import Action, CatchUp, Costs, Draft, LinkView, Outcome, Verify, Wait
from cloud_gateway.core.policies.arrival import Timeline
from cloud_gateway.core.policies.budget import Acceptance, Budget, Prices, Reference
from cloud_gateway.core.policies.settings import DEFAULTS, PolicySettings
from cloud_gateway.core.policies.tree_value import Outlook, Surveyor
from cloud_gateway.core.verify.candidates import CandidateTree, Merged
from edgespec.core.drafting.calibration import Calibrator

SHARES = {"balanced": 0.45, "offload": 0.0}
"""Local passes, relative to co-located k = 2, that are made even when the answer is not behind."""
WAIT_SHARE = 0.2
"""Longest wait for useful candidates, as a share of a target step."""
ALIGN_SHARE = 0.1
"""The same where there are some: passes that begin as a frame arrives find a wrong path soonest."""
STALL_SHARE = 0.5
"""Of a round trip: candidates due sooner are not drafted here too, where passes have a price."""
STALL_STEPS = (1.5, 2.0)
"""Least and greatest value of that limit, in target steps."""
LATENCY_STEPS = 0.2
"""The limit where passes are free, in target steps."""
LOSS_PRIOR, LOSS_WEIGHT = 0.07, 60
"""Prior of divergences per token, and its weight in tokens."""
HURRY_STEPS = 1.0
"""The limit while the answer is behind."""
MAX_RUN = 8
"""Local levels in a row."""
HORIZON_STEPS = 32
"""Target steps over which reading what the local draft has missed must pay, where the worker is no help."""


@dataclass(slots=True)
class Adaptive:
    """See the module's text."""

    settings: PolicySettings = DEFAULTS
    sequences: int = 16
    """Leaves of one local pass."""
    width: int = 4
    share: float | None = None
    """Local passes allowed, relative to co-located k = 2; None: as `prefer` says."""
    calibrator: Calibrator = field(default_factory=Calibrator)
    name: str = field(default="adaptive", init=False)
    fallbacks: int = field(default=0, init=False)
    drafts_from_start: bool = field(default=False, init=False)
    why: str | None = field(default=None, init=False)
    """Why it last drafted here, in words for the client; None while it never did."""
    _surveyor: Surveyor = field(init=False)
    _timeline: Timeline = field(default_factory=Timeline, init=False)
    _budget: Budget | None = field(default=None, init=False)
    _reference: Reference | None = field(default=None, init=False)
    _run: int = field(default=0, init=False)
    _tokens: int = field(default=0, init=False)
    _caught_up_last: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._surveyor = Surveyor(self.calibrator)
        share = SHARES.get(self.settings.prefer) if self.share is None else self.share
        self._budget = None if share is None else Budget(share)

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """The rules of the module's text, in their order."""
        position = tree.root.position
        if not self._timeline.started:
            self._timeline.start(position, now)
        outlook = self._surveyor.look(tree, min(self.sequences, costs.local_leaves), self.width)
        prices = self._price(link, costs, now)
        stall = float("inf") if link is None else self._timeline.due(self._missing(outlook, position), link, now) - now
        if self._drafts(outlook, stall, prices, link, costs):
            return self._draft(outlook, link, costs)
        patience = ALIGN_SHARE if outlook.nodes else WAIT_SHARE
        if not self._run and 0 < stall <= patience * costs.verify_s(1):
            return Wait(now + stall)
        return Verify(outlook.worth(costs.verify_s, prices.token_s, self.settings.verify_nodes))

    def _drafts(self, outlook: Outlook, stall: float, prices: Prices, link: LinkView | None, costs: Costs) -> bool:
        """Whether another local level pays."""
        step = costs.local_step_s
        if step is None or self._run >= MAX_RUN:
            return False
        if outlook.nodes and outlook.gain(self.settings.verify_nodes) * prices.token_s <= step + prices.pass_s:
            return False
        if self._run:
            return True
        if link is not None and stall <= self._patience(link, costs):
            return False
        if not _pays(stall, prices, costs):
            return False
        return self._budget is None or self._budget.open

    def _missing(self, outlook: Outlook, position: int) -> int:
        """The first level that the worker would have to add to the candidates."""
        if not outlook.nodes:
            return position + 1
        return position + 2 if self._timeline.lost else max(self._timeline.frontier, position) + 1

    def _patience(self, link: LinkView, costs: Costs) -> float:
        """The stall from which it drafts itself."""
        target = costs.verify_s(1)
        if self._budget is None:
            return LATENCY_STEPS * target
        if self._budget.behind:
            return HURRY_STEPS * target
        return min(max(STALL_SHARE * link.rtt_s, STALL_STEPS[0] * target), STALL_STEPS[1] * target)

    def _draft(self, outlook: Outlook, link: LinkView | None, costs: Costs) -> Action:
        if costs.local_backlog_s > costs.batch_backlog_s:  # a long catch-up alternates with target steps
            self._caught_up_last = not self._caught_up_last
            return CatchUp() if self._caught_up_last else Verify(())
        if not self._run:
            self.fallbacks += 1
            self.why = self._reason(link)
        self._run += 1
        if self._budget is not None:
            self._budget.spend()
        return Draft(tuple(outlook.leaves), self.width)

    def _reason(self, link: LinkView | None) -> str:
        """Why the gateway drafts."""
        if link is None:
            return "no worker drafts for it"
        if self._budget is not None and self._budget.behind:
            return f"the worker, {link.rtt_s * 1000:.0f} ms away, was too slow to keep up with drafting here"
        return f"at {link.rtt_s * 1000:.0f} ms it was faster to draft here while the worker was on another path"

    def _price(self, link: LinkView | None, costs: Costs, now: float) -> Prices:
        losses = (self._timeline.losses + LOSS_PRIOR * LOSS_WEIGHT) / (self._tokens + LOSS_WEIGHT)
        draft = Acceptance(self._surveyor.match, self._surveyor.named, losses)
        self._reference = Reference.of(costs, draft.match)
        if self._budget is None:
            return Prices.of(link, costs, draft)
        prices = Prices.scarce(link, costs, draft, self._reference, hurry=self._budget.behind)
        self._budget.look(self._reference, prices.token_s, now)
        return prices

    def received(self, merged: Merged, now: float) -> None:
        """Updates the estimate of where the worker's draft stands."""
        self._timeline.frame(merged, now)

    def verified(self, outcome: Outcome, now: float) -> None:
        """A round ended."""
        self._run = 0
        self._tokens += outcome.emitted
        if self._budget is not None and self._reference is not None:
            self._budget.earn(outcome.emitted, self._reference)
        self._timeline.committed(outcome.position, now, on_path=outcome.at_leaf)


def _pays(stall_s: float, prices: Prices, costs: Costs) -> bool:
    """Whether drafting here beats bare target steps, what the local draft must first catch up with included.

    It has until the worker is back or, where the worker is the slower one, rather the whole answer.
    """
    target = costs.verify_s(1)
    helpful = prices.token_s < prices.local_s
    time = min(stall_s, HORIZON_STEPS * target) if helpful else HORIZON_STEPS * target
    return (time - costs.local_backlog_s) / prices.local_s > time / target
