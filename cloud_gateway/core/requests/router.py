"""Which worker drafts for a request: the one whose draft tokens are expected soonest, load considered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from cloud_gateway.core.policies.actions import Points
from edgespec.core.pairing.groups import DEFAULT_GROUPS


@dataclass(frozen=True, slots=True)
class LinkedWorker:
    """A linked worker at one moment, as the engine sees it; the link layer replaces it when something has changed."""

    id: str
    rtt_s: float
    rtt_high_s: float
    step_s: float
    """Td, from the spacing of its frames."""
    paused: bool
    name: str = ""
    groups: frozenset[str] = frozenset(DEFAULT_GROUPS)
    shares: bool = False
    """Whether it takes a share of a request."""
    draft_points: Points = ()
    """Leaves and seconds of a draft step as the worker reports it: a lie costs time, never a token."""
    answers: bool = False
    """Whether it writes answers for requests that wait."""

    @property
    def label(self) -> str:
        """By which usage, audit log and what is learnt of it name it."""
        return self.name or self.id


def choose(
    workers: Iterable[LinkedWorker], load: Mapping[str, int], groups: frozenset[str], *, exclude: Collection[str] = ()
) -> str | None:
    """The worker with the least expected wait for a corrected draft, R + (load + 1) Td; None when none is free.

    `load`: requests that a worker drafts for now, by its id. Only workers of one of `groups` are asked: they read the
    prompt. A worker shares its model fairly among its requests, so each sees a step time that grows with the load.
    """
    free = [one for one in workers if one.groups & groups and not one.paused and one.id not in exclude]
    best = min(free, key=lambda one: (one.rtt_s + (load.get(one.id, 0) + 1) * one.step_s, one.id), default=None)
    return best.id if best else None
