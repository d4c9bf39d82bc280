"""Hands what happens to the requests' state machines and carries out what follows from it. Engine's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cloud_gateway.core.requests.events import (
    Chosen,
    Drop,
    Effect,
    Event,
    Finished,
    FrameArrived,
    FrameTaken,
    Released,
    Send,
    WorkerWanted,
)
from cloud_gateway.core.requests.request import Event as StreamEvent
from cloud_gateway.core.requests.request import Finish
from cloud_gateway.engine.active import Active
from cloud_gateway.engine.caught import Caught
from cloud_gateway.engine.local_draft import LocalDrafting
from cloud_gateway.engine.offloading import Offloading
from cloud_gateway.engine.recovery import Recovery
from cloud_gateway.engine.stats import Stats
from cloud_gateway.models.target_model import Target


@dataclass(slots=True)
class Steering:
    """The one place where a step of a request is taken."""

    target: Target
    local: LocalDrafting
    stats: Stats
    clock: Callable[[], float]
    emit: Callable[[Active, StreamEvent], None]
    finish: Callable[[Active, Finish, str | None], None]
    offloading: Offloading = field(init=False)
    recovery: Recovery = field(init=False)

    def step(
        self, active: Active, event: Event, stage: str = "", *, fatal: bool = False, now: float | None = None
    ) -> None:
        """Takes one step; a fault stays with the request (recovery.py: `stage`, `fatal`)."""
        effects: Sequence[Effect] = ()
        worker = event.worker if isinstance(event, FrameArrived) else None
        with self.recovery.guard(active, stage or f"handling {type(event).__name__}", fatal=fatal, worker=worker):
            effects = active.generation.handle(event, self.clock() if now is None else now)
        self.carry_out(active, effects)

    def carry_out(self, active: Active, effects: Sequence[Effect]) -> None:
        """In their order; where the target cannot keep a path, the request is put into a fresh slot at the end."""
        lost: Exception | None = None
        for effect in effects:
            if isinstance(effect, Chosen):
                lost = self._chosen(active, effect)
            else:
                with self.recovery.guard(active, "carrying out a step"):
                    self._carry_out(active, effect)
        if lost is not None and not active.ended:
            self.recovery.pass_failed([active], lost)

    def _carry_out(self, active: Active, effect: Effect) -> None:
        match effect:
            case FrameTaken() | Send() | Released():
                self.offloading.carry_out(active, effect)
            case Finished(finish, error):
                self.finish(active, finish, error)
            case Drop(slot):
                self.local.close(active)
                if slot:
                    self.recovery.reopen(active)
            case WorkerWanted(useless):
                self.offloading.assign(active, useless)

    def _chosen(self, active: Active, effect: Chosen) -> Exception | None:
        """Keeps the keys and values of the path taken, and sends its tokens; returns what went wrong in keeping."""
        self.stats.tokens += len(effect.tokens)
        with Caught() as caught:
            self.target.keep(active.slot, effect.rows)
        if caught.error is None:
            with self.recovery.guard(active, "asking the heads"):
                self.local.ask_heads(active)
        self.local.commit(active, effect.tokens)
        if effect.event is not None:
            self.emit(active, effect.event)
        return caught.error
