"""The gateway's own drafting for its requests: when its KV is caught up, and what a step would cost. Engine thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from msgspec.structs import replace

from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.policies.policy import (
    CatchUp,
    Costs,
    Draft,
    Points,
    catch_up_batch,
    draft_costs,
    shared,
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
        return DraftCost(self._model.passes - self._passes, ended - self._began, ended)


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

    def open(self, active: Active) -> None:
        """Begins a request, unless its policy never drafts or the draft has no room for it."""
        if self.model is None:
            self.refuse(active, "there is no local draft (`local_draft.model`)")
        elif active.generation.policy.name != "plain":
            with Contained(self._lost, active):  # too many requests, or too long a prompt
                self.model.open(active.id, active.generation.reading, active.request.cache_scope)
                active.local = True

    def refuse(self, active: Active, why: str) -> None:
        """The request goes without the local draft."""
        if not active.ended:
            self.step(active, Failed("draft", why))

    def close(self, active: Active) -> None:
        if self.model is not None and active.local:
            active.local = False
            with Contained(self._lost, active):
                self.model.close(active.id)

    def commit(self, active: Active, tokens: Sequence[int]) -> None:
        """The target emitted these tokens."""
        if self.model is not None and active.local:
            with Contained(self._lost, active):
                self.model.commit(active.id, tokens)

    def show_prompt(self, active: Active) -> None:
        """Shows the request's sources what the target has just read of its prompt."""
        for source in _with_states(active):
            began = self.clock()
            source.prompt_read(active.slot)
            self._book(active, source, began, "reading")

    def show_path(self, active: Active) -> None:
        """Shows the request's sources what the target has just kept, if they compute with it."""
        for source in _with_states(active):
            if source.wanted:
                began = self.clock()
                source.path_kept(active.slot, active.generation.tree.root.token)
                spent = self._book(active, source, began, "draft")
                source.charged(spent / self.verify_s(1))

    def ask_sources(self, active: Active) -> None:
        """Asks the request's sources for candidates, where tokens were committed, and books the time of each."""
        generation = active.generation
        began = self.clock()
        for source in generation.ask_sources():
            now = self.clock()
            generation.note(Spent("source", now - began, name=source), now)
            began = now

    def _book(self, active: Active, source: StateSource, began: float, kind: Literal["reading", "draft"]) -> float:
        """Books the time since then as the request's; seconds."""
        spent = self.clock() - began
        self.stats.draft_s += spent
        active.generation.note(Spent("source", spent, name=source.name), began + spent)
        active.generation.note(Spent(kind, spent), began + spent)
        return spent

    def decodes(self, active: Active, in_slots: int) -> bool:
        """Whether its prompt has been read, so that its policy is asked. `in_slots`: requests that have a slot."""
        return active.generation.status is Status.DECODE and not self.prompt_pending(active, in_slots)

    def prompt_pending(self, active: Active, in_slots: int) -> bool:
        """Whether the draft has to read the prompt of a request whose policy wants it read before the first token. All
        requests in slots wait meanwhile."""
        generation = active.generation
        if not active.local or generation.first_token_at is not None or self._backlog(active) <= 1:
            return False
        costs = replace(self.costs(active, in_slots), sharers=in_slots - 1, remaining=generation.remaining)
        return generation.policy.reads_prompt(costs, worker=generation.assignment is not None)

    def prefill(self, active: Active, chunk: int, kind: Literal["reading", "draft"] = "reading") -> None:
        """One chunk of a prompt, or later of what was committed meanwhile."""
        assert self.model is not None
        timed = DraftTimer(self.model, self.clock)
        with Contained(self._lost, active):
            self.model.catch_up(active.id, chunk)
        cost = timed.cost()
        self.stats.drafted(cost.passes, cost.seconds)
        active.generation.note(Spent(kind, cost.seconds, cost.passes), cost.ended)

    def run(self, actions: Sequence[tuple[Active, Draft | CatchUp]]) -> None:
        """Runs the batches of catch-up (WANSpec section 4.5), then one draft pass over the leaves of all that draft."""
        model = self.model
        if model is None:
            return

        group: list[tuple[Active, Draft]] = []
        rows = 0
        for active, action in actions:
            if isinstance(action, CatchUp):
                batch = catch_up_batch(self.verify_s, model.token_s)
                self.prefill(active, min(action.tokens or batch, batch), "draft")
                continue
            count = min(len(action.leaves), model.leaves)
            if rows + count > model.together:
                self._draft(model, group)
                group = []
                rows = 0
            group.append((active, action))
            rows += count
        if group:
            self._draft(model, group)

    def _draft(self, model: DraftModel, group: Sequence[tuple[Active, Draft]]) -> None:
        """Runs one pass for the group. If it fails, each has a pass of its own, so that only those that fail alone lose
        the draft."""
        leaves_of = [action.leaves[: model.leaves] for _, action in group]  # the likeliest come first
        asked = [_asked(active, leaves, action) for (active, action), leaves in zip(group, leaves_of, strict=True)]

        timed = DraftTimer(model, self.clock)
        with Contained() as caught:
            proposals_of = model.draft(asked)
        cost = timed.cost()

        self.stats.drafted(cost.passes, cost.seconds)
        rows = sum(len(leaves) for leaves in leaves_of)
        for (active, _), leaves in zip(group, leaves_of, strict=True):
            active.generation.note(Spent("draft", cost.seconds * len(leaves) / rows, cost.passes), cost.ended)

        if caught.error is None:
            for (active, _), leaves, proposals in zip(group, leaves_of, proposals_of, strict=True):
                self.step(active, Drafted(leaves, proposals))
        elif len(group) == 1:  # the request may have outgrown the draft's memory
            active, _ = group[0]
            self._lost(active, caught.error)
        else:
            for member in group:
                self._draft(model, [member])

    def costs(self, active: Active, drafters: int) -> Costs:
        """What a step costs each of so many requests that share it."""
        model = self.model
        if model is None or not active.local:
            return Costs(self.verify_s)

        backlog = max(self._backlog(active) - 1, 0)
        if not active.local:
            return Costs(self.verify_s)

        priced_at = (model.passes, drafters)
        if self._price is None or self._price.at != priced_at:
            self._price = _Price(priced_at, *shared(model.step_s, model.points, drafters, model.leaves))
        price = self._price
        return draft_costs(self.verify_s, price.step_s, backlog, model.token_s, model.leaves, price.points)

    def _backlog(self, active: Active) -> int:
        """Committed tokens that the draft model has not evaluated."""
        with Contained(self._lost, active):
            if self.model is not None:
                return self.model.backlog(active.id)
            return 0
        return 0  # it has just been given up

    def _lost(self, active: Active, error: Exception) -> None:
        """Whatever the local draft raises costs the request its local draft and nothing else."""
        if isinstance(error, EdgespecError):  # no memory for it: expected, and its text is ours
            log.info("request %d goes without the local draft: %s", active.id, error)
            self.refuse(active, "the local draft has no room for this request")
        else:
            self.stats.faults += 1
            log.error("request %d goes without the local draft after a fault: %s", active.id, describe_fault(error))
            self.refuse(active, "a fault of the gateway ended the local draft of this request")
        self.close(active)


def _with_states(active: Active) -> Sequence[StateSource]:
    """The sources of a request that compute with what the target keeps of it."""
    sources = active.generation.sources
    if sources is None or active.ended:
        return ()
    return sources.with_states


def _asked(active: Active, leaves: Sequence[Node], action: Draft) -> Asked:
    """A request's part of a draft pass, below these leaves."""
    generation = active.generation
    paths = [leaf.path(generation.tree.root) for leaf in leaves]
    return Asked(active.id, paths, action.width, generation.verification.rank)
