"""Which worker drafts for which request: assignment, and moving on when a worker goes. Lives on the engine's thread.

Each method here yields the events that follow, and the driver (`Requests.step`) hands each to its request before it
takes the next one: the load of a worker, by which the next is chosen, counts the assignments before. Stepping the
requests from here was tried first, and made a circle of the two objects, with steps inside steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from cloud_gateway.core.policies.policy import LinkView
from cloud_gateway.core.requests.events import Released, WorkerChange, WorkerChanged
from cloud_gateway.core.requests.router import LinkedWorker, choose
from cloud_gateway.engine.exchange import Active, Declined, WorkerGone
from cloud_gateway.engine.pool import WorkerPool, scope_for

WorkerNeeded = Callable[[str, str], None]
"""Called with a worker, and the reason, before a request is given it: it has no time for anything else. It is called
also if the worker has gone."""


class Change(NamedTuple):
    """A worker drafts for a request from now on, or no longer does."""

    active: Active
    event: WorkerChanged


Changes = Iterator[Change]


def why_none(linked: Collection[LinkedWorker], groups: frozenset[str], load: Mapping[str, int]) -> str:
    """Why no worker drafts, for the usage."""
    for worker in linked:
        if worker.groups & groups and not worker.paused and not worker.takes(load.get(worker.id, 0)):
            return "every worker has as many requests as it takes"
    if all(worker.groups & groups for worker in linked):
        return "no worker is linked"
    return f"no worker of this API key's groups ({', '.join(sorted(groups))}) is linked"


class Offloading:
    """Chooses workers for the requests in slots."""

    def __init__(
        self,
        pool: WorkerPool,
        active: Mapping[int, Active],
        workers_per_request: int,
        on_worker_needed: WorkerNeeded = lambda worker, why: None,
    ) -> None:
        """`active`: the requests in slots, in a mapping that the driver changes."""
        self._pool = pool
        self._active = active
        self._workers_per_request = workers_per_request
        self._on_worker_needed = on_worker_needed
        self._changed = False
        """Whether workers may have become idle since `share` last looked."""

    # --- events --------------------------------------------------------------------------------------------------

    def assign(self, active: Active, useless: str | None = None) -> Changes:
        """Finds a worker for a request that may have one; `useless`: in the place of this one, if there is another."""
        generation = active.generation
        wanted = generation.wants_worker
        if useless:
            wanted = generation.may_offload
        if not wanted:
            return

        linked = self._pool.linked()
        load = self._load()
        groups = active.request.groups
        present = generation.assignments.given.keys()
        chosen = choose(
            linked.values(),
            load,
            groups,
            self._pool.merit,
            exclude=generation.assignments.excluded | present,
            explore=not useless and self._pool.merit.explores(),
        )

        # 1. There is none: one that is useless is kept.
        if chosen is None:
            if not useless:
                why = why_none(linked.values(), groups, load)
                yield Change(active, WorkerChanged("", "none", why))
            return

        # 2. It takes the place of the useless one.
        beside = bool(present - {useless})
        if useless:
            yield Change(active, WorkerChanged(useless, "useless"))
        yield from self._free(chosen)
        yield self._give(active, linked[chosen], beside=beside)

    def share(self) -> Changes:
        """Gives workers to requests that have none, and idle ones to those that have one, up to `workers_per_request`.

        Called every turn; it looks only if a worker was linked, given or released meanwhile.
        """
        if not self._changed:
            return

        self._changed = False
        without = [active for active in self._active.values() if active.generation.wants_worker]
        for active in without:
            yield from self.assign(active)

        if self._workers_per_request > 1:
            yield from self._share_idle()

    def _share_idle(self) -> Changes:
        """Gives idle workers to requests that have one already, the request with the fewest first."""
        linked = self._pool.linked()
        busy = self._busy()
        for active in sorted(self._active.values(), key=_workers):
            if not self._may_share(active, linked):
                continue

            idle = [worker for worker in linked.values() if worker.id not in busy]
            excluded = active.generation.assignments.excluded
            chosen = choose(idle, {}, active.request.groups, self._pool.merit, exclude=excluded)
            if chosen is not None:
                busy.add(chosen)
                yield self._give(active, linked[chosen], beside=True)

    def _may_share(self, active: Active, linked: Mapping[str, LinkedWorker]) -> bool:
        """Whether a request gets a further worker: it has one, which is linked, and not as many as it may have."""
        generation = active.generation
        present = generation.assignments.given.keys()
        if not generation.may_offload or not present <= linked.keys():
            return False
        return 0 < len(present) < self._workers_per_request

    def worker_ready(self) -> Changes:
        """A worker was linked or resumed: requests without one may use it."""
        self._changed = True
        for active in list(self._active.values()):
            yield from self.assign(active)

    def worker_gone(self, event: WorkerGone) -> Changes:
        """A worker went, paused or was revoked: its requests move on at once, its candidates are dropped."""
        for active in list(self._active.values()):
            yield Change(active, WorkerChanged(event.worker, "gone"))
        self._on_worker_needed(event.worker, "moved")

    def declined(self, event: Declined) -> Changes:
        """A worker will not draft for one request."""
        active = self._active.get(event.request)
        if active is not None:
            yield Change(active, WorkerChanged(event.worker, "declined"))

    def released(self, active: Active, released: Released) -> None:
        """A worker no longer drafts for a request."""
        self._changed = True
        self._pool.released(active.request.key, released)

    # --- views ---------------------------------------------------------------------------------------------------

    def idle(self) -> dict[str, LinkedWorker]:
        """The linked workers that draft for no request that runs."""
        busy = self._busy()
        linked = self._pool.linked()
        return {name: worker for name, worker in linked.items() if name not in busy}

    def link_of(self, active: Active) -> LinkView | None:
        """What the controller may know of the request's worker; None while nobody drafts for it."""
        assignment = active.generation.assignment
        if assignment is None:
            return None

        worker = self._pool.view(assignment.worker)
        if worker is None:
            return None

        return LinkView(worker.rtt_s, worker.rtt_high_s, worker.step_s, assignment.ready)

    # --- internals -----------------------------------------------------------------------------------------------

    def _load(self) -> Counter[str]:
        """Requests by the worker that drafts for them first."""
        firsts = [active.generation.assignment for active in self._active.values()]
        return Counter(first.worker for first in firsts if first is not None)

    def _busy(self) -> set[str]:
        """Workers that draft for a request in a slot."""
        return {worker for active in self._active.values() for worker in active.generation.assignments.given}

    def _free(self, worker: str) -> Changes:
        """Takes a worker away from requests that it drafts for beside another one: they can do without it."""
        for active in list(self._active.values()):
            beside = list(active.generation.assignments.given)[1:]
            if worker in beside:
                yield Change(active, WorkerChanged(worker, "needed"))

    def _give(self, active: Active, worker: LinkedWorker, *, beside: bool) -> Change:
        """Notes that a request gets a worker; `beside`: another one that it has."""
        self._on_worker_needed(worker.id, "needed elsewhere")
        self._pool.merit.given(worker.label)
        self._changed = True

        why: WorkerChange = "assigned"
        if beside:
            why = "beside"
        scope = scope_for(worker.id, active.request.cache_scope)
        return Change(active, WorkerChanged(worker.id, why, worker.label, scope))


def _workers(active: Active) -> int:
    """Workers that draft for a request."""
    return len(active.generation.assignments.given)
