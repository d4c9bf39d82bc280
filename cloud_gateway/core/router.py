"""Which worker drafts for a request: the one whose guesses are expected to arrive soonest, load considered."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A linked worker as the router sees it."""

    id: str
    rtt_s: float
    step_s: float
    paused: bool
    load: int
    """Requests that it drafts for now."""


def choose(workers: Iterable[WorkerView], *, exclude: Collection[str] = ()) -> str | None:
    """The worker with the least expected wait for a corrected guess, R + (load + 1) Td; None when none is free.

    A worker shares its model fairly among its requests, so each sees a step time that grows with the load.
    """
    free = [worker for worker in workers if not worker.paused and worker.id not in exclude]
    best = min(free, key=lambda worker: (worker.rtt_s + (worker.load + 1) * worker.step_s, worker.id), default=None)
    return best.id if best else None
