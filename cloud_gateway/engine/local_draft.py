"""The gateway's own drafting for its requests: when its KV is caught up, and what a step would cost. Engine thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from msgspec.structs import replace

from cloud_gateway.core.limits.shared_passes import in_passes, shared_step
from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.policies.policy import (
    CatchUp,
    Costs,
    Draft,
    Points,
    catch_up_batch,
    draft_costs,
)
from cloud_gateway.core.requests.accounting import Stats
from cloud_gateway.core.requests.events import Drafted, Event, Failed, Spent, Status
from cloud_gateway.core.sources.interface import StateSource
from cloud_gateway.engine.exchange import Active
from cloud_gateway.models.drafts import DraftModel
from edgespec.core.drafting.ranking import Asked, Spread
from edgespec.core.drafting.tree import Node
from edgespec.core.errors import EdgespecError
from edgespec.shared.contained import Contained, describe_fault

log = logging.getLogger("cloud_gateway.engine.local_draft")


class _Price(NamedTuple):
    """What a step costs each of the requests that share it."""

    at: tuple[int, int]
    """The draft's passes when it was computed, since each pass changes the measured times, and the requests."""
    step_s: float
    points: Points


class DraftCost(NamedTuple):
    """What some work of the draft model took."""

    passes: int
    seconds: float
    ended: float
    """A moment of the engine's clock, in seconds."""


class DraftTimer:
    """Measures some work of the draft model."""

    def __init__(self, model: DraftModel, clock: Callable[[], float]) -> None:
        self._model = model
        self._clock = clock
        self._passes = model.passes
        self._began = clock()

    def cost(self) -> DraftCost:
        """Passes and time since the beginning."""
        ended = self._clock()
        passes = self._model.passes - self._passes
        return DraftCost(passes, ended - self._began, ended)


class _Drafting(NamedTuple):
    """One request's part of a draft pass."""

    active: Active
    leaves: Sequence[Node]
    """Those below which children are proposed."""
    width: int
    """Most children that each leaf gets."""

    def asked(self) -> Asked:
        """The part as the draft model takes it."""
        root = self.active.generation.tree.root
        paths = [leaf.path(root) for leaf in self.leaves]
        return Asked(self.active.id, paths, self.width, self.active.generation.verification.rank)


@dataclass(slots=True)
class LocalDrafting:
    """The local draft model, or its absence, as the engine uses it."""

    model: DraftModel | None
    verify_s: StepCurve
    stats: Stats
    clock: Callable[[], float]
    step: Callable[[Active, Event], None]
    """Hands a request an event (`Requests.step`)."""
    spread: Spread = field(default_factory=Spread)
    """How far this draft and the target disagree, learned from all requests."""
    _price: _Price | None = field(default=None, init=False)
    """The latest one, since a turn asks for the same price for every request."""

    # --- the draft's requests ------------------------------------------------------------------------------------

    def open(self, active: Active) -> None:
        """Begins a request, unless its policy never drafts or the draft has no room for it."""
        if self.model is None:
            self.refuse(active, "there is no local draft (`local_draft.model`)")
            return
        if active.generation.policy.name == "plain":
            return

        with Contained(self._lost, active):  # too many requests, or too long a prompt
            self.model.open(active.id, active.generation.reading, active.request.cache_scope)
            active.local = True

    def refuse(self, active: Active, why: str) -> None:
        """The request goes without the local draft."""
        if not active.ended:
            self.step(active, Failed("draft", why))

    def close(self, active: Active) -> None:
        """Ends a request, if the draft holds it."""
        if self.model is None or not active.local:
            return

        active.local = False
        with Contained(self._lost, active):
            self.model.close(active.id)

    def commit(self, active: Active, tokens: Sequence[int]) -> None:
        """The target emitted these tokens."""
        if self.model is None or not active.local:
            return

        with Contained(self._lost, active):
            self.model.commit(active.id, tokens)

    # --- sources -------------------------------------------------------------------------------------------------

    def show_prompt(self, active: Active) -> None:
        """Shows the request's sources what the target has just read of its prompt."""
        for source in _with_states(active):
            began = self.clock()
            source.prompt_read(active.slot)
            self._book(active, source, began, "reading")

    def show_path(self, active: Active) -> None:
        """Shows the request's sources what the target has just kept, if they compute with it."""
        for source in _with_states(active):
            if not source.wanted:
                continue

            began = self.clock()
            source.path_kept(active.slot, active.generation.tree.root.token)
            spent_s = self._book(active, source, began, "draft")
            source.charged(spent_s / self.verify_s(1))

    def ask_sources(self, active: Active) -> None:
        """Asks the request's sources for candidates, where tokens were committed, and books the time of each."""
        generation = active.generation
        began = self.clock()
        for source in generation.ask_sources():
            ended = self.clock()
            generation.note(Spent("source", ended - began, name=source), ended)
            began = ended

    def _book(
        self,
        active: Active,
        source: StateSource,
        began: float,
        kind: Literal["reading", "draft"],
    ) -> float:
        """Books the time since then as the request's; seconds."""
        spent_s = self.clock() - began
        ended = began + spent_s
        self.stats.draft_s += spent_s
        active.generation.note(Spent("source", spent_s, name=source.name), ended)
        active.generation.note(Spent(kind, spent_s), ended)
        return spent_s

    # --- reading -------------------------------------------------------------------------------------------------

    def decodes(self, active: Active, in_slots: int) -> bool:
        """Whether its prompt has been read, so that its policy is asked. `in_slots`: requests that have a slot."""
        return active.generation.status is Status.DECODE and not self.prompt_pending(active, in_slots)

    def prompt_pending(self, active: Active, in_slots: int) -> bool:
        """Whether the draft has to read the prompt of a request whose policy wants it read before the first token. All
        requests in slots wait meanwhile."""
        generation = active.generation
        has_begun = generation.first_token_at is not None
        if not active.local or has_begun or self._backlog(active) <= 1:
            return False

        price = self.costs(active, in_slots)
        costs = replace(price, sharers=in_slots - 1, remaining=generation.remaining)
        has_worker = generation.assignment is not None
        return generation.policy.reads_prompt(costs, worker=has_worker)

    def prefill(self, active: Active, chunk: int, kind: Literal["reading", "draft"] = "reading") -> None:
        """One chunk of a prompt, or later of what was committed meanwhile."""
        assert self.model is not None
        timed = DraftTimer(self.model, self.clock)
        with Contained(self._lost, active):
            self.model.catch_up(active.id, chunk)

        cost = timed.cost()
        self.stats.drafted(cost.passes, cost.seconds)
        active.generation.note(Spent(kind, cost.seconds, cost.passes), cost.ended)

    # --- drafting ------------------------------------------------------------------------------------------------

    def run(self, actions: Sequence[tuple[Active, Draft | CatchUp]]) -> None:
        """Runs the batches of catch-up (WANSpec section 4.5), then draft passes over the leaves of all that draft."""
        model = self.model
        if model is None:
            return

        drafting: list[_Drafting] = []
        for active, action in actions:
            match action:
                case CatchUp(tokens):
                    self._catch_up(model, active, tokens)
                case Draft(leaves, width):
                    likeliest = leaves[: model.leaves]  # they come first
                    drafting.append(_Drafting(active, likeliest, width))

        for group in in_passes(drafting, lambda part: len(part.leaves), model.together):
            self._draft(model, group)

    def _catch_up(self, model: DraftModel, active: Active, tokens: int) -> None:
        """Reads at most so many tokens of the backlog, or one batch if that is less or `tokens` is 0."""
        batch = catch_up_batch(self.verify_s, model.token_s)
        if tokens:
            batch = min(tokens, batch)
        self.prefill(active, batch, "draft")

    def _draft(self, model: DraftModel, group: Sequence[_Drafting]) -> None:
        """Runs one pass for the group. If it fails, each has a pass of its own, so that only those that fail alone lose
        the draft."""
        asked = [part.asked() for part in group]
        timed = DraftTimer(model, self.clock)
        with Contained() as caught:
            proposals_of = model.draft(asked)

        cost = timed.cost()
        self.stats.drafted(cost.passes, cost.seconds)
        self._charge(group, cost)

        # 1. Each request gets its proposals.
        if caught.error is None:
            for part, proposals in zip(group, proposals_of, strict=True):
                self.step(part.active, Drafted(part.leaves, proposals))
            return

        # 2. The pass failed alone: the request may have outgrown the draft's memory.
        if len(group) == 1:
            self._lost(group[0].active, caught.error)
            return

        # 3. One of several made it fail.
        for part in group:
            self._draft(model, [part])

    def _charge(self, group: Sequence[_Drafting], cost: DraftCost) -> None:
        """Books the time of a pass for the requests that shared it, by their leaves."""
        rows = sum(len(part.leaves) for part in group)
        for part in group:
            seconds = cost.seconds * len(part.leaves) / rows
            part.active.generation.note(Spent("draft", seconds, cost.passes), cost.ended)

    def costs(self, active: Active, drafters: int) -> Costs:
        """What a step costs each of so many requests that share it."""
        model = self.model
        if model is None or not active.local:
            return Costs(self.verify_s)

        backlog = max(self._backlog(active) - 1, 0)
        if not active.local:  # it has just been given up
            return Costs(self.verify_s)

        price = self._shared_price(model, drafters)
        return draft_costs(
            self.verify_s,
            price.step_s,
            backlog,
            model.token_s,
            model.leaves,
            price.points,
        )

    def _shared_price(self, model: DraftModel, drafters: int) -> _Price:
        """Of a step that so many requests share."""
        priced_at = (model.passes, drafters)
        if self._price is None or self._price.at != priced_at:
            step_s, points = shared_step(model.step_s, model.points, drafters, model.leaves)
            self._price = _Price(priced_at, step_s, points)
        return self._price

    def _backlog(self, active: Active) -> int:
        """Committed tokens that the draft model has not evaluated."""
        if self.model is None:
            return 0

        with Contained(self._lost, active):
            return self.model.backlog(active.id)
        return 0  # it has just been given up

    # --- faults --------------------------------------------------------------------------------------------------

    def _lost(self, active: Active, error: Exception) -> None:
        """Whatever the local draft raises costs the request its local draft and nothing else."""
        if isinstance(error, EdgespecError):  # no memory for it: expected, and its text is ours
            why = "the local draft has no room for this request"
            log.info("request %d goes without the local draft: %s", active.id, error)
        else:
            why = "a fault of the gateway ended the local draft of this request"
            self.stats.faults += 1
            log.error(
                "request %d goes without the local draft after a fault: %s",
                active.id,
                describe_fault(error),
            )

        self.refuse(active, why)
        self.close(active)


def _with_states(active: Active) -> Sequence[StateSource]:
    """The sources of a request that compute with what the target keeps of it."""
    sources = active.generation.sources
    if sources is None or active.ended:
        return ()
    return sources.with_states
