"""Hands what happens to the requests' state machines and carries out what follows from it. Engine's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cloud_gateway.core.requests.request import Event, Finish
from cloud_gateway.core.requests.steps import (
    Diverged,
    DropDraft,
    Emit,
    Finished,
    FrameArrived,
    FrameTaken,
    Input,
    Keep,
    Output,
    Punish,
    Released,
    Reopen,
    Send,
    WorkerWanted,
)
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
    emit: Callable[[Active, Event], None]
    finish: Callable[[Active, Finish, str | None], None]
    offloading: Offloading = field(init=False)
    recovery: Recovery = field(init=False)

    def step(
        self, active: Active, step: Input, stage: str = "", *, fatal: bool = False, now: float | None = None
    ) -> None:
        """Takes one step; a fault stays with the request (recovery.py: `stage`, `fatal`)."""
        outputs: Sequence[Output] = ()
        worker = step.worker if isinstance(step, FrameArrived) else None
        with self.recovery.guard(active, stage or f"handling {type(step).__name__}", fatal=fatal, worker=worker):
            outputs = active.generation.handle(step, self.clock() if now is None else now)
        self.carry_out(active, outputs)

    def carry_out(self, active: Active, outputs: Sequence[Output]) -> None:
        """In their order; where the target cannot keep a path, the request is put into a fresh slot at the end."""
        lost: Exception | None = None
        for output in outputs:
            if isinstance(output, Keep):
                lost = self._keep(active, output)
            elif isinstance(output, FrameTaken):  # the most frequent one
                self.offloading.note(output)
            else:
                with self.recovery.guard(active, "carrying out a step"):
                    self._carry_out(active, output)
        if lost is not None and not active.ended:
            self.recovery.pass_failed([active], lost)

    def _carry_out(self, active: Active, output: Output) -> None:
        match output:
            case Send() | Diverged() | Punish() | Released():
                self.offloading.carry_out(active, output)
            case Emit(event):
                self.emit(active, event)
            case Finished(finish, error):
                self.finish(active, finish, error)
            case Reopen():
                self.recovery.reopen(active)
            case DropDraft():
                self.local.close(active)
            case WorkerWanted(useless):
                self.offloading.assign(active, useless)

    def _keep(self, active: Active, output: Keep) -> Exception | None:
        """Keeps the keys and values of the path taken; returns what went wrong."""
        self.stats.tokens += len(output.tokens)
        with Caught() as caught:
            self.target.keep(active.slot, output.rows)
        if caught.error is None:
            with self.recovery.guard(active, "asking the heads"):
                self.local.ask_heads(active)
        self.local.commit(active, output.tokens)
        return caught.error
