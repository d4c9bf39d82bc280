"""What every request that decodes does next: asks their policies, at the price of what they share.

Who shares a pass, and at what price, `core/limits/shared_passes.py` decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cloud_gateway.core.limits.shared_passes import Company, agree, shared_rows
from cloud_gateway.core.policies.policy import Action, CatchUp, Draft, Verify, Wait
from cloud_gateway.core.requests.events import Ended
from cloud_gateway.engine.exchange import Active
from cloud_gateway.engine.prefill import Prefill
from cloud_gateway.engine.requests import Requests

log = logging.getLogger("cloud_gateway.engine.loop")

IDLE_S = 0.5
"""Longest sleep of the loop with nothing to do."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """What is computed next, and when the policies are asked again."""

    verifies: Sequence[tuple[Active, Verify]]
    drafts: Sequence[tuple[Active, Draft | CatchUp]]
    wake: float
    """A moment of the engine's clock, in seconds."""

    @property
    def drafting(self) -> int:
        """Requests that share the next pass of the local draft."""
        return sum(isinstance(action, Draft) for _, action in self.drafts)

    @classmethod
    def of(cls, actions: Mapping[Active, Action], now: float) -> Decisions:
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


class Deciding:
    """Asks the policies once a turn. Lives on the engine's thread."""

    def __init__(self, requests: Requests, prefill: Prefill, candidates: int) -> None:
        """`candidates`: the most that a request has in a pass."""
        self._requests = requests
        self._local = requests.local
        self._prefill = prefill
        self._candidates = candidates

    def decide(self, now: float, wake: Callable[[], None]) -> Decisions:
        """What to verify and what to draft. `wake` is called on any thread once what a request waits for is
        there: its constraint's mask, or a token of the target."""
        self._end_cancelled()
        in_slots = self._requests.active.values()
        decoding = [active for active in in_slots if self._local.decodes(active, len(in_slots))]
        ready = [active for active in decoding if self._requests.ready(active, wake)]

        # A draft pass costs each the less the more share it: at first as if all that decode did.
        everyone = max(len(decoding), 1)
        actions: dict[Active, Action] = {}

        def ask(asked: Sequence[Active], sharing: int) -> Sequence[Active]:
            beside = 0.0
            if sharing < everyone:
                beside = _rows(in_slots) - _rows(asked)

            company = self._company(everyone, sharing, beside)
            for active in asked:
                actions[active] = self._ask(active, company, now)
            return [active for active in asked if isinstance(actions[active], Draft)]

        agree(ready, everyone, ask)
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
            decoding=decoding,
            drafters=drafters,
            rows_s=shared_rows(verify_s, drafters, round(other_rows), self._candidates),
            read_s=self._prefill.spent_s,
            probe=verify_s.probe,
        )

    def _ask(self, active: Active, company: Company, now: float) -> Action:
        """What its policy decides. After a fault of the policy the request decodes plainly, and is asked again at
        once."""
        generation = active.generation
        with self._requests.isolated(active, "deciding"):
            others = _rows(self._requests.active.values()) - active.rows
            alone = self._local.costs(active, company.drafters)
            costs = company.costs(alone, others)
            link = self._requests.offloading.link_of(active)

            self._local.ask_sources(active)
            action = generation.decide(link, costs, now)
            active.decided(action)

            change = generation.policy.change
            if change is not None:
                mode, reason = change
                log.info(
                    "request %d: the guard's mode is now %s (%s)",
                    active.id,
                    mode,
                    reason,
                )
            return action

        return Wait(now)


def _rows(requests: Iterable[Active]) -> float:
    """Rows that these requests are expected to put into the next pass."""
    return sum(active.rows for active in requests)
