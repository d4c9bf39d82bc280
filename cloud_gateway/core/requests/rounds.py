"""How a request's policy is asked: within bounds on a round, on the request's own time, and after it has been given the
outcome of the round before."""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from cloud_gateway.core.policies.policy import Action, Costs, Draft, LinkView, Outcome, Policy, Verify, Wait
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.protocol.messages import MAX_MICROS

MAX_LOCAL_PASSES = 32
"""Local draft passes between two verify passes. The deepest policy asks for 16 (k of the API's schema)."""
MAX_ROUND_S = 2.0
"""Longest time of drafting and waiting before a verify pass; round trips worth waiting for are far shorter."""


class Rounds:
    """One request's rounds as its policy sees them, on its own time: that stands still from a preemption until the
    request's tokens are read again, so that no policy, worker or figure is charged with the wait. `now` is the driver's
    in `own` and `decide`, the request's own elsewhere."""

    def __init__(self, verify_nodes: int) -> None:
        """`verify_nodes`: most candidates of the verify pass that ends a round whose budget is used up."""
        self._now = self._lost = 0.0
        """The latest moment, and the time in which its own stood still."""
        self._stopped = inf
        """Since when it does."""
        self._read_s, self._skipped_s, self._resumed = 0.0, 0.0, False
        self.latest = 0, 0
        """Period and pass of the latest round in whole microseconds, as its workers are sent them."""
        self.drafting = False
        """Whether the policy wants a draft pass that has not been made."""
        self._verify_nodes, self._passes = verify_nodes, 0
        self._began: float | None = None
        """When the round's first decision was made that was not to verify."""
        self._pass_began: float | None = None
        self._ended: float | None = None
        self._unheard: tuple[Outcome, float] | None = None

    def own(self, now: float) -> float:
        """The request's own time at this moment."""
        self._now = now
        return min(now, self._stopped) - self._lost

    def stop(self) -> None:
        """Its time stands still from the latest moment on."""
        self._stopped = min(self._stopped, self._now)

    def resume(self) -> None:
        """Its time goes on, where it stands still."""
        if self._stopped < inf:
            self._lost, self._stopped, self._resumed = self._lost + self._now - self._stopped, inf, True

    def _costs(self, costs: Costs) -> Costs:
        """The same without the reading in `Costs.paused_s` that went on while its time stood still."""
        if self._resumed:
            self._skipped_s, self._resumed = self._skipped_s + costs.paused_s - self._read_s, False
        self._read_s = costs.paused_s
        return replace(costs, paused_s=costs.paused_s - self._skipped_s) if self._skipped_s else costs

    def decide(self, policy: Policy, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """What the policy wants next, within the bounds of a round."""
        own = self.own(now)
        if self.drafting:
            policy.withdrawn()
            self._passes -= 1
        action = self.bound(policy.decide(tree, link, self._costs(costs), own), tree, own)
        self.drafting = isinstance(action, Draft)
        return Wait(action.until + self._lost) if isinstance(action, Wait) else action

    def bound(self, action: Action, tree: CandidateTree, now: float) -> Action:
        """The action, or a verify pass over the likeliest candidates where passes or time of the round are used up."""
        if not isinstance(action, Verify):
            self._began = now if self._began is None else self._began
            deadline = self._began + MAX_ROUND_S
            if now < deadline and isinstance(action, Wait):
                return action if action.until < deadline else Wait(deadline)  # written so that NaN is bounded too
            if now < deadline and self._passes < MAX_LOCAL_PASSES:
                self._passes += 1
                return action
            action = Verify(tree.best(self._verify_nodes))
        self._pass_began = now
        return action

    def ended(self, outcome: Outcome, now: float) -> None:
        """A round ended; its policy is given the outcome before any later event (`inform`)."""
        self._unheard = outcome, now
        period_us = micros(0.0 if self._ended is None else now - self._ended)
        pass_us = min(micros(0.0 if self._pass_began is None else now - self._pass_began), period_us or MAX_MICROS)
        self.latest, self._ended = (period_us, pass_us), now
        self._began, self._passes = None, 0

    def inform(self, policy: Policy) -> None:
        """Gives the policy the last round's outcome, where it has not been given it."""
        if self._unheard is not None:
            unheard, self._unheard = self._unheard, None
            policy.verified(*unheard)


def micros(seconds: float) -> int:
    """Whole microseconds as the wire takes them."""
    return round(min(max(0.0, seconds), MAX_MICROS / 1e6) * 1e6)  # in this order not-a-number counts as 0
