"""What every request that decodes does next: asks their policies, and settles the price of what they share.

Requests that draft share one pass of the local draft, and their candidates share one pass of the target. So what a
draft costs each of them depends on how many draft, which is known only after all have been asked. The alternative, one
policy for all requests together, was not taken: a request's decisions would then depend on what its neighbours are,
and a trace of one request could not be replayed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from cloud_gateway.core.policies.policy import Action, CatchUp, Costs, Draft, Verify, Wait, shared_rows
from cloud_gateway.core.requests.events import Ended
from cloud_gateway.engine.exchange import Active
from cloud_gateway.engine.local_draft import LocalDrafting
from cloud_gateway.engine.prefill import Prefill
from cloud_gateway.engine.requests import Requests

log = logging.getLogger("cloud_gateway.engine.loop")

IDLE_S = 0.5
"""Longest sleep of the loop with nothing to do."""


class Company(Struct, frozen=True):
    """The requests that run at once, as far as they decide what a step costs one of them."""

    in_slots: int
    decoding: int
    """Requests whose policies are asked: they wait for each other's rows and drafts."""
    drafters: int
    """Requests that are expected to share the next pass of the local draft."""
    rows_s: tuple[float, ...]
    """Seconds that a first, second, … candidate of each drafter adds to the target's pass, divided by their number."""
    read_s: float
    """Seconds since the start in which prompts were read between passes."""
    probe: tuple[int, float] | None
    """A number of rows to try, and the least seconds that a pass over them can take."""

    def costs(self, alone: Costs, other_rows: float) -> Costs:
        """`alone`: a request's own costs; `other_rows`: rows that the others are expected to put into its pass."""
        return replace(
            alone,
            other_rows=round(other_rows),
            sharers=self.decoding - 1,
            waiting=self.in_slots - self.decoding,
            together=self.drafters - 1,
            rows_s=self.rows_s,
            paused_s=self.read_s,
            probe=self.probe,
        )


@dataclass(frozen=True, slots=True)
class Decisions:
    """What is computed next, and when the policies are asked again."""

    verifies: Sequence[tuple[Active, Verify]]
    drafts: Sequence[tuple[Active, Draft | CatchUp]]
    wake: float
    """A moment of the engine's clock, in seconds."""

    @classmethod
    def of(cls, actions: dict[Active, Action], now: float) -> Decisions:
        """Sorts the actions by what they ask for."""
        verifies: list[tuple[Active, Verify]] = []
        drafts: list[tuple[Active, Draft | CatchUp]] = []
        wake = now + IDLE_S
        for active, action in actions.items():
            match action:
                case Verify():
                    verifies.append((active, action))
                case Wait(until):
                    wake = min(wake, until)
                case _:
                    drafts.append((active, action))

        return cls(verifies, drafts, wake)


class Hold:
    """Whether a pass of the target waits for requests that draft, so that one pass verifies for all."""

    def __init__(self) -> None:
        self._since: float | None = None
        """When the pass that waits now was first ready."""

    def holds(self, ready: int, drafting: int, now: float, pass_s: float) -> bool:
        """`ready` requests wait while at least as many draft, and at most as long as a pass takes."""
        since = now if self._since is None else self._since
        holds = 0 < ready <= drafting and now - since <= pass_s
        self._since = since if holds else None
        return holds


class Deciding:
    """Asks the policies once a turn. Lives on the engine's thread."""

    def __init__(self, requests: Requests, prefill: Prefill, candidates: int) -> None:
        """`candidates`: the most that a request has in a pass."""
        self._requests = requests
        self._local: LocalDrafting = requests.local
        self._prefill = prefill
        self._candidates = candidates

    def decide(self, now: float, wake: Callable[[], None]) -> Decisions:
        """What to verify and what to draft. `wake` is called on any thread once a constraint's mask is ready that a
        request waits for."""
        self._end_cancelled()
        in_slots = self._requests.active.values()
        decoding = [active for active in in_slots if self._local.decodes(active, len(in_slots))]
        ready = [active for active in decoding if active.ready(wake)]

        # A draft pass costs each request the less the more share it. So all are asked as if all that decode drafted,
        # and those that want to draft are asked again at the price of their own number, until nobody leaves.
        actions: dict[Active, Action] = {}
        asked = ready
        company = self._company(len(decoding), max(len(decoding), 1), 0.0)
        while asked:
            for active in asked:
                actions[active] = self._ask(active, company, now)
            drafters = [active for active in asked if isinstance(actions[active], Draft)]
            if len(drafters) in (0, company.drafters):
                break
            drafters_rows = sum(active.rows for active in drafters)
            company = self._company(len(decoding), len(drafters), self._rows() - drafters_rows)
            asked = drafters

        return Decisions.of(actions, now)

    def _end_cancelled(self) -> None:
        """Ends the requests whose clients left; a round of theirs is not begun."""
        for active in list(self._requests.active.values()):
            if active.generation.cancelled:
                self._requests.step(active, Ended("stopped"))

    def _company(self, decoding: int, drafters: int, other_rows: float) -> Company:
        """`other_rows`: rows in the target's pass of all that do not draft."""
        verify_s = self._local.verify_s
        return Company(
            in_slots=len(self._requests.active),
            decoding=max(decoding, 1),
            drafters=drafters,
            rows_s=shared_rows(verify_s, drafters, round(other_rows), self._candidates),
            read_s=self._prefill.spent_s,
            probe=verify_s.probe,
        )

    def _rows(self) -> float:
        """Rows that all requests are expected to put into the next pass."""
        return sum(active.rows for active in self._requests.active.values())

    def _ask(self, active: Active, company: Company, now: float) -> Action:
        """What its policy decides. After a fault of the policy the request decodes plainly, and is asked again at
        once."""
        with self._requests.isolated(active, "deciding"):
            costs = company.costs(self._local.costs(active, company.drafters), self._rows() - active.rows)
            self._local.ask_sources(active)
            action = active.generation.decide(self._requests.offloading.link_of(active), costs, now)
            active.decided(action)
            change = active.generation.policy.change
            if change is not None:
                log.info("request %d: the guard's mode is now %s (%s)", active.id, *change)
            return action

        return Wait(now)
