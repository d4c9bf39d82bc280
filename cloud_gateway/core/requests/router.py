"""Which worker drafts for a request: the one of which an accepted draft token is expected soonest, load considered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from cloud_gateway.core.policies.actions import Points, at
from cloud_gateway.core.requests.merit import Merit
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
    draft_points: Points = ()
    """Leaves and seconds of a draft step as the worker reports it: a lie costs time, never a token."""
    requests: int = 0
    """That it takes at once; 0: it does not say."""

    @property
    def label(self) -> str:
        """By which usage, audit log and what is learnt of it name it."""
        return self.name or self.id

    def pass_s(self, requests: int) -> float:
        """Seconds of a pass of its model with a leaf of each of so many requests: by its curve, else in turns."""
        return at(self.draft_points, requests) if self.draft_points else requests * self.step_s

    def takes(self, load: int) -> bool:
        """Whether it takes a request beside so many."""
        return not self.requests or load < self.requests


def cost_s(one: LinkedWorker, load: int, merit: Merit | None) -> float:
    """Expected wait for an accepted draft token: a round trip and a pass with the other requests, the wait for a
    corrected draft, over its worth.

    So a worker whose passes take no longer for more requests is filled before slower ones get any, and those whose
    passes do are filled evenly. Without `merit` all are worth the same.
    """
    return (one.rtt_s + one.pass_s(load + 1)) / (merit.of(one.label).worth if merit else 1.0)


def choose(
    workers: Iterable[LinkedWorker],
    load: Mapping[str, int],
    groups: frozenset[str],
    merit: Merit,
    *,
    exclude: Collection[str] = (),
    explore: bool = False,
) -> str | None:
    """The worker with the least `cost_s`; None when none is free. `load`: requests that each drafts for now, by its id.

    Only workers of one of `groups` are asked: they read the prompt. `explore`: of the workers that are nearer
    than that one and passed over for their worth, the one that has waited longest.
    """
    free = [
        one for one in workers
        if one.groups & groups and not one.paused and one.id not in exclude and one.takes(load.get(one.id, 0))
    ]  # fmt: skip

    def wait_s(one: LinkedWorker, merit: Merit | None = None) -> float:
        return cost_s(one, load.get(one.id, 0), merit)

    best = min(free, key=lambda one: (wait_s(one, merit), one.id), default=None)
    if explore and best is not None:
        nearer = [one for one in free if wait_s(one) < wait_s(best)]
        best = min(nearer, key=lambda one: (merit.of(one.label).tried, one.id), default=best)
    return best.id if best else None
