"""The one interpreter of what follows from a request's events: engine and simulator carry effects out through it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from cloud_gateway.core.requests.events import (
    Chosen,
    Drop,
    Effect,
    Finished,
    FrameTaken,
    Released,
    Send,
    WorkerWanted,
)

R = TypeVar("R")
"""What a driver keeps of a request: its machine, and in the engine also slot and stream."""


class Driver(Generic[R]):
    """Has a method for each effect. A driver overrides those that mean something where it runs."""

    def carry_out(self, request: R, effects: Sequence[Effect]) -> None:
        """All that followed from one event, in its order."""
        for effect in effects:
            self.apply(request, effect)

    def apply(self, request: R, effect: Effect) -> None:
        match effect:
            case FrameTaken():
                self.frame_taken(request, effect)
            case Send():
                self.send(request, effect)
            case Chosen():
                self.chosen(request, effect)
            case Released():
                self.released(request, effect)
            case WorkerWanted():
                self.worker_wanted(request, effect)
            case Drop():
                self.drop(request, effect)
            case Finished():
                self.finished(request, effect)

    def frame_taken(self, request: R, taken: FrameTaken) -> None:
        """A frame was merged, or was not."""

    def send(self, request: R, message: Send) -> None:
        """A worker is sent a message."""

    def chosen(self, request: R, chosen: Chosen) -> None:
        """The target has chosen tokens."""

    def released(self, request: R, released: Released) -> None:
        """A worker drafts no longer for the request."""

    def worker_wanted(self, request: R, wanted: WorkerWanted) -> None:
        """The request may have a worker."""

    def drop(self, request: R, drop: Drop) -> None:
        """Local draft, and slot perhaps, are given up."""

    def finished(self, request: R, finished: Finished) -> None:
        """The request is over."""
