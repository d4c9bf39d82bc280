"""The gateway's own drafting for its requests: when its KV is caught up, and what a step would cost. Engine thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from cloud_gateway.active import Active
from cloud_gateway.caught import describe_fault
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
            with _Spared(self, active):  # too many requests, or too long a prompt
                self.model.open(active.id, active.request.tokens, active.request.cache_scope)
                active.local = True

    def close(self, active: Active) -> None:
        """Ends a request here."""
        if self.model is not None and active.local:
            active.local = False
            with _Spared(self, active):
                self.model.close(active.id)

    def commit(self, active: Active, tokens: list[int]) -> None:
        """The target emitted these tokens."""
        if self.model is not None and active.local:
            with _Spared(self, active):
                self.model.commit(active.id, tokens)

    def prompt_pending(self, active: Active) -> bool:
        """Whether the draft still reads the prompt of a request whose policy drafts from the first token on."""
        wanted = active.local and active.controller.drafts_from_start and active.first_token is None
        return wanted and self._owed(active) > 1

    def prefill(self, active: Active, chunk: int) -> None:
        """One chunk of a prompt."""
        assert self.model is not None
        began, passes = self.clock(), self.model.passes
        with _Spared(self, active):
            self.model.catch_up(active.id, chunk)
        active.usage.prefill_s += self._book(began, passes)

    def run(self, active: Active, action: Draft | CatchUp) -> None:
        """One draft pass, or one batch of catch-up (WANSpec section 4.5)."""
        assert self.model is not None
        began, passes = self.clock(), self.model.passes
        with _Spared(self, active):  # the request may have outgrown the draft's memory
            if isinstance(action, CatchUp):
                self.model.catch_up(active.id, self._batch(self.model))
            else:
                leaves = action.leaves[: self.model.leaves]  # the likeliest come first
                paths = [leaf.path(active.tree.root) for leaf in leaves]
                found = self.model.draft(active.id, paths, action.width, active.verification.rank)
                for leaf, proposal in zip(leaves, found, strict=True):
                    active.add_local(leaf, proposal)
        active.usage.local_draft_passes += self.model.passes - passes
        active.usage.local_s += self._book(began, passes)

    def costs(self, active: Active) -> Costs:
        """What the controller may reckon with."""
        model = self.model
        if model is None or not active.local:
            return Costs(self.verify_s)
        debt_s = max(self._owed(active) - 1, 0) * model.token_s
        if not active.local:
            return Costs(self.verify_s)
        return Costs(self.verify_s, model.step_s, debt_s, self._batch(model) * model.token_s, model.leaves)

    def _owed(self, active: Active) -> int:
        """Committed tokens that the draft has not read."""
        with _Spared(self, active):
            return self.model.owed(active.id) if self.model is not None else 0
        return 0

    def _batch(self, model: DraftModel) -> int:
        """Tokens of one catch-up batch: as many as take about one target step, so that no gap is much longer."""
        return max(LEAST_BATCH, int(self.verify_s(1) / max(model.token_s, 1e-6)))

    def _book(self, began: float, passes: int) -> float:
        assert self.model is not None
        spent = self.clock() - began
        self.stats.draft_s += spent
        self.stats.local_passes += self.model.passes - passes
        return spent


class _Spared:
    """A context in which whatever the local draft raises costs the request its local draft and nothing else."""

    __slots__ = ("_active", "_local")

    def __init__(self, local: LocalDrafting, active: Active) -> None:
        self._local, self._active = local, active

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        if isinstance(error, EdgespecError):  # no memory for it: expected, and its text is ours
            log.info("request %d goes without the local draft: %s", self._active.id, error)
        else:
            self._local.stats.faults += 1
            what = describe_fault(error)
            log.error("request %d goes without the local draft after a fault: %s", self._active.id, what)
        self._local.close(self._active)
        return True
