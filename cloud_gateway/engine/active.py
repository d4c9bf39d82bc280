"""A request as the engine holds it: the pure state machine, and what belongs to this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloud_gateway.core.limits.cells import Room
from cloud_gateway.core.requests.events import Status
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.requests.request import GenerationRequest

if TYPE_CHECKING:
    from cloud_gateway.engine.output_queue import Stream


@dataclass(slots=True, eq=False)
class Active:
    """Lives on the engine's thread, its stream on the event loop."""

    generation: Generation
    stream: Stream
    room: Room
    """Its part of the target's KV cache."""
    ran: bool = False
    """Whether it had a slot before, from which it was preempted."""
    slot: int = -1
    """Of the target; -1 while it has none."""
    local: bool = False
    """Whether the local draft holds this request; not when it has no room for it."""

    rows: int = 0
    """Rows that it put into the turn's pass, as last decided: what other requests expect of it."""

    @property
    def id(self) -> int:
        """Unique in this process."""
        return self.generation.id

    @property
    def request(self) -> GenerationRequest:
        """What the client asked for."""
        return self.generation.request

    @property
    def ended(self) -> bool:
        """Whether the request is over."""
        return self.generation.status is Status.FINISHED

    def ready(self, wake: Callable[[], None]) -> bool:
        """Whether a pass can bring it a token; where its constraint has no mask yet, `wake` is called once it has."""
        constraint = self.request.constraint
        return constraint is None or constraint.ready((), wake)
