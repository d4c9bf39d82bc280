"""Bounds a round in passes and seconds, and excludes time while preempted.

A policy that never verifies would keep its request from ever getting a token. So a round has a budget of draft passes
and of seconds, and ends with a verify pass when either is used up.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from cloud_gateway.core.policies.guard import Reference
from cloud_gateway.core.policies.policy import (
    Action,
    Costs,
    Draft,
    LinkView,
    Outcome,
    Policy,
    Verify,
    Wait,
)
from cloud_gateway.core.policies.tuning import TUNING
from cloud_gateway.core.requests.pace import NO_TIME, Span
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.protocol.messages import MAX_MICROS

MAX_LOCAL_PASSES = 32
"""Local draft passes between two verify passes. The deepest policy asks for 16 (k of the API's schema)."""
MAX_ROUND_S = 2.0
"""Longest time of drafting and waiting before a verify pass; round trips worth waiting for are far shorter."""


class RequestTime:
    """One request's own time, in seconds. It stands still from a preemption until the request's tokens are read again,
    so that no policy, worker or figure is charged with the wait."""

    def __init__(self) -> None:
        self.lost_s = 0.0
        """Seconds in which the request's time stood still, so far."""
        self._latest = 0.0
        """The latest moment of the driver's clock."""
        self._stopped_at = inf
        """Since when it stands still; inf while it runs."""
        self._read_s = 0.0
        self._skipped_s = 0.0
        """Seconds of `Costs.paused_s` that fell into the time in which the request's stood still."""
        self._resumed = False

    def at(self, now: float) -> float:
        """The request's time at this moment of the driver's clock."""
        self._latest = now
        return min(now, self._stopped_at) - self.lost_s

    def stop(self) -> None:
        """It stands still from the latest moment on."""
        self._stopped_at = min(self._stopped_at, self._latest)

    def resume(self) -> None:
        """It goes on, if it stands still."""
        if self._stopped_at == inf:
            return
        self.lost_s = self.lost_s + self._latest - self._stopped_at
        self._stopped_at = inf
        self._resumed = True

    def costs(self, costs: Costs) -> Costs:
        """The costs, with the part of `Costs.paused_s` that fell into the request's time."""
        if self._resumed:
            self._skipped_s += costs.paused_s - self._read_s
            self._resumed = False
        self._read_s = costs.paused_s
        if not self._skipped_s:
            return costs

        return replace(costs, paused_s=costs.paused_s - self._skipped_s)


class RoundTimes(NamedTuple):
    """A round as its workers are sent it, in whole microseconds."""

    period_us: int
    """From the end of the round before to its own."""
    pass_us: int
    """Duration of its verify pass, at most the period."""


class Rounds:
    """One request's rounds as its policy sees them. `now` is the driver's in `decide`, the request's own elsewhere."""

    def __init__(self, verify_nodes: int, time: RequestTime | None = None) -> None:
        """`verify_nodes`: most candidates of the verify pass that ends a round whose budget is used up."""
        self.latest = RoundTimes(0, 0)
        self.span = NO_TIME
        """The latest round, without time in which prompts were read; empty for the first one."""
        self.drafting = False
        """Whether the policy wants a draft pass that has not been made."""
        self._time = time or RequestTime()
        self._verify_nodes = verify_nodes
        self._passes = 0
        self._began: float | None = None
        """When the round's first decision was made that was not to verify."""
        self._pass_began: float | None = None
        self._ended: float | None = None
        self._costs: Costs | None = None
        """Those of the round's latest decision."""
        self._paused_s = 0.0
        """`Costs.paused_s` at the end of the round before."""
        self._pending_outcome: tuple[Outcome, float] | None = None

    def decide(
        self,
        policy: Policy,
        tree: CandidateTree,
        link: LinkView | None,
        costs: Costs,
        now: float,
    ) -> Action:
        """What the policy wants next, within the bounds of a round."""
        own_time = self._time.at(now)
        if self.drafting:
            policy.withdrawn()
            self._passes -= 1

        self._costs = self._time.costs(costs)
        action = policy.decide(tree, link, self._costs, own_time)
        action = self.bound(action, tree, own_time)

        self.drafting = isinstance(action, Draft)
        if isinstance(action, Wait):
            return Wait(action.until + self._time.lost_s)

        return action

    def bound(self, action: Action, tree: CandidateTree, now: float) -> Action:
        """The action, or a verify pass over the likeliest candidates if passes or time of the round are used up."""
        if isinstance(action, Verify):
            self._pass_began = now
            return action

        if self._began is None:
            self._began = now
        deadline = self._began + MAX_ROUND_S
        if now < deadline and isinstance(action, Wait):
            if action.until < deadline:
                return action
            return Wait(deadline)  # the comparison is written so that NaN is bounded too
        if now < deadline and self._passes < MAX_LOCAL_PASSES:
            self._passes += 1
            return action

        self._pass_began = now
        return Verify(tree.best(self._verify_nodes))

    def ended(self, outcome: Outcome, now: float) -> None:
        """A round ended; its policy is given the outcome before any later event (`deliver_outcome`)."""
        self._pending_outcome = (outcome, now)
        self.span = self._span(outcome.emitted, now)
        period_us = micros(_since(self._ended, now))
        pass_us = min(micros(_since(self._pass_began, now)), period_us or MAX_MICROS)
        self.latest = RoundTimes(period_us, pass_us)
        self._ended = now
        self._began = None
        self._passes = 0

    def _span(self, tokens: int, now: float) -> Span:
        """The round that ends now."""
        costs = self._costs
        if costs is None:
            return NO_TIME

        read_s = costs.paused_s - self._paused_s
        self._paused_s = costs.paused_s
        if self._ended is None:
            return NO_TIME

        spent_s = max(now - self._ended - read_s, 0.0)
        return Span(tokens, spent_s, tokens * Reference.of(costs, TUNING.match).token_s)

    def deliver_outcome(self, policy: Policy) -> None:
        """Gives the policy the outcome of the last round, unless it has it."""
        if self._pending_outcome is None:
            return
        outcome, ended_at = self._pending_outcome
        self._pending_outcome = None
        policy.verified(outcome, ended_at)


def micros(seconds: float) -> int:
    """Whole microseconds as the wire takes them."""
    return round(min(max(0.0, seconds), MAX_MICROS / 1e6) * 1e6)  # in this order not-a-number counts as 0


def _since(moment: float | None, now: float) -> float:
    if moment is None:
        return 0.0
    return now - moment
