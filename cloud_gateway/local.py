"""The gateway's own drafting for its requests: when its KV is caught up, and what a step would cost. Engine thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from cloud_gateway.active import Active
from cloud_gateway.core.actions import CatchUp, Costs, Draft
from cloud_gateway.core.estimators import StepCurve
from cloud_gateway.drafts import DraftModel
from cloud_gateway.stats import Stats
from edgespec.core.errors import EdgespecError
from edgespec.core.ranking import Spread

log = logging.getLogger("cloud_gateway.local")

LEAST_BATCH = 4
"""Tokens of a catch-up batch, however fast the target is."""


@dataclass(slots=True)
class LocalDrafting:
    """The local draft model, or its absence, as the engine uses it."""

    model: DraftModel | None
    verify_s: StepCurve
    stats: Stats
    clock: Callable[[], float]
    spread: Spread = field(default_factory=Spread)
    """How far this draft and the target disagree, learned from all requests."""

    def open(self, active: Active) -> None:
        """Begins a request, unless its policy never drafts or the draft has no room for it."""
        if self.model is not None and active.controller.name != "plain":
            try:
                self.model.open(active.id, active.request.tokens, active.request.cache_scope)
                active.local = True
            except EdgespecError as error:  # too many requests, or too long a prompt: the answer needs no draft
                log.info("request %d goes without the local draft: %s", active.id, error)

    def close(self, active: Active) -> None:
        """Ends a request here."""
        if self.model is not None and active.local:
            self.model.close(active.id)
            active.local = False

    def commit(self, active: Active, tokens: list[int]) -> None:
        """The target emitted these tokens."""
        if self.model is not None and active.local:
            self.model.commit(active.id, tokens)

    def prompt_pending(self, active: Active) -> bool:
        """Whether the draft still reads the prompt of a request whose policy drafts from the first token on."""
        wanted = active.local and active.controller.drafts_from_start and active.first_token is None
        return wanted and self.model is not None and self.model.owed(active.id) > 1

    def prefill(self, active: Active, chunk: int) -> None:
        """One chunk of a prompt."""
        assert self.model is not None
        began, passes = self.clock(), self.model.passes
        self.model.catch_up(active.id, chunk)
        active.usage.prefill_s += self._book(began, passes)

    def run(self, active: Active, action: Draft | CatchUp) -> None:
        """One draft pass, or one batch of catch-up (WANSpec section 4.5)."""
        assert self.model is not None
        began, passes = self.clock(), self.model.passes
        try:
            if isinstance(action, CatchUp):
                self.model.catch_up(active.id, self._batch(self.model))
            else:
                leaves = action.leaves[: self.model.leaves]  # the likeliest come first
                paths = [leaf.path(active.tree.root) for leaf in leaves]
                found = self.model.draft(active.id, paths, action.width, active.verification.rank)
                for leaf, proposal in zip(leaves, found, strict=True):
                    active.add_local(leaf, proposal)
        except EdgespecError as error:  # the request has outgrown the draft's memory
            log.info("request %d goes on without the local draft: %s", active.id, error)
            self.close(active)
        active.usage.local_draft_passes += self.model.passes - passes
        active.usage.local_s += self._book(began, passes)

    def costs(self, active: Active) -> Costs:
        """What the controller may reckon with."""
        model = self.model
        if model is None or not active.local:
            return Costs(self.verify_s)
        debt_s = max(model.owed(active.id) - 1, 0) * model.token_s
        return Costs(self.verify_s, model.step_s, debt_s, self._batch(model) * model.token_s, model.leaves)

    def _batch(self, model: DraftModel) -> int:
        """Tokens of one catch-up batch: as many as take about one target step, so that no gap is much longer."""
        return max(LEAST_BATCH, int(self.verify_s(1) / max(model.token_s, 1e-6)))

    def _book(self, began: float, passes: int) -> float:
        assert self.model is not None
        spent = self.clock() - began
        self.stats.draft_s += spent
        self.stats.local_passes += self.model.passes - passes
        return spent
