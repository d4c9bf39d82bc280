"""Which worker drafts for a request: the one whose draft tokens are expected soonest, load considered."""

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
    groups: frozenset[str]


def choose(workers: Iterable[WorkerView], groups: frozenset[str], *, exclude: Collection[str] = ()) -> str | None:
    """The worker with the least expected wait for a corrected draft, R + (load + 1) Td; None when none is free.

    Only workers of one of `groups` are asked: they read the prompt. A worker shares its model fairly among its
    requests, so each sees a step time that grows with the load.
    """
    free = [one for one in workers if one.groups & groups and not one.paused and one.id not in exclude]
    best = min(free, key=lambda worker: (worker.rtt_s + (worker.load + 1) * worker.step_s, worker.id), default=None)
    return best.id if best else None
