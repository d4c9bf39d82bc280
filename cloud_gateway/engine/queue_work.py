"""The seam for work on requests that wait for a slot: what those in slots leave idle may serve them.

The engine has at most one such work, which a part brings (`Running.queue_work`). What is idle is an argument of each
call. So the work refers neither to the requests in slots nor to what gives them workers, and can take nothing of
theirs. A list of such works was not taken: two of them would have to share what is idle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.requests.accounting import Stats
from cloud_gateway.core.requests.events import FrameArrived, FrameTaken
from cloud_gateway.core.requests.router import LinkedWorker
from cloud_gateway.engine.exchange import Active, Declined
from cloud_gateway.engine.pool import WorkerPool
from cloud_gateway.models.drafts import DraftModel

NEVER = float("inf")
Idle = Callable[[], Mapping[str, LinkedWorker]]
"""The linked workers, by id, that draft for no request in a slot; paused ones are among them."""


@dataclass(frozen=True, slots=True)
class Lent:
    """What the work may use of the engine, on the engine's thread only."""

    pool: WorkerPool
    """For messages to workers, and their merit."""
    draft: DraftModel | None
    """The local draft. It knows requests in slots by their numbers, which are positive."""
    verify_s: StepCurve
    """Seconds of a pass of the target by its rows."""
    clock: Callable[[], float]
    stats: Stats
    eos: frozenset[int]
    """Tokens that end a completion."""


class QueueWork:
    """Work on requests that wait. The engine calls each method on its thread; here each does nothing.

    The work may send messages to idle workers, with numbers of requests from 2^62 on, which no client's request gets.
    Only a worker of the request's groups may be sent its prompt, and only if `assignments.allowed`; the work notes that
    on the request (`PromptSent`, `WaitingFrame`, `PromptWithdrawn`, `Spent`), for its usage and the audit log. It may
    feed the request's sources, and must not step the request or block.
    """

    def lead(self, waiting: Sequence[Active], idle: Idle) -> None:
        """Called each turn when the requests in slots have got their workers, before the models compute.

        `waiting`: all requests without a slot.
        """

    def compute(self, waiting: Sequence[Active]) -> float:
        """Called at the end of each turn, for at most one pass of the local draft.

        Returns when it should be called again, in seconds of the engine's clock; NEVER if not before the next event.
        """
        return NEVER

    def left(self, active: Active, why: str) -> None:
        """A request waits no more: it is `admitted`, right before it gets its slot, or over, and then `cancelled`.

        Also called for a request that ends in its slot.
        """

    def frame_arrived(self, event: FrameArrived) -> FrameTaken | None:
        """Takes in a frame for no request in a slot; None if the work has not asked this worker for it.

        The engine carries out what follows from it, as for a request in a slot.
        """
        return None

    def declined(self, event: Declined) -> None:
        """A worker declined a request, which may be one of the work's."""

    def worker_needed(self, worker: str, why: str) -> None:
        """A worker is gone, or about to be given to a request in a slot: it works for no other one from now on."""


MakeQueueWork = Callable[[Lent], QueueWork]


def no_queue_work(lent: Lent) -> QueueWork:
    """Requests just wait."""
    return QueueWork()
