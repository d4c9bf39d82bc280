"""Who drafts for which request: assignment, frames, commits, and moving on when a worker goes (engine thread)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cloud_gateway.active import Active
from cloud_gateway.audit import Audit, NoAudit
from cloud_gateway.caught import Caught
from cloud_gateway.core.actions import LinkView
from cloud_gateway.core.merge import Merged
from cloud_gateway.core.router import WorkerView, choose
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.groups import DEFAULT_GROUPS
from edgespec.core.messages import Close, Commit, Open, Tree


@dataclass(frozen=True, slots=True)
class LinkedWorker:
    """A worker as the link layer knows it at this moment."""

    id: str
    rtt_s: float
    rtt_high_s: float
    step_s: float
    """Td, from the spacing of its frames."""
    paused: bool
    name: str = ""
    groups: frozenset[str] = frozenset(DEFAULT_GROUPS)


class Workers(Protocol):
    """The link layer as the engine sees it. `linked` is called on the engine's thread, the others on the event loop."""

    def linked(self) -> Mapping[str, LinkedWorker]:
        """Workers by id, the paused ones included."""

    def send(self, worker: str, body: Open | Commit | Close) -> None:
        """Queues a message; one to a worker that has gone is dropped."""

    def punish(self, worker: str, error: RemoteProtocolError) -> None:
        """Ends the link of a worker that broke the protocol."""

    def diverged(self, worker: str) -> None:
        """The target left what the worker had drafted for a request."""

    def note(self, worker: str, reason: str, text: str) -> None:
        """Counts and logs something that was dropped but does not end the link."""


class NoWorkers:
    """A gateway without links: everything is decoded here."""

    def linked(self) -> Mapping[str, LinkedWorker]:
        """None."""
        return {}

    def send(self, worker: str, body: Open | Commit | Close) -> None:
        """Nobody to tell."""

    def punish(self, worker: str, error: RemoteProtocolError) -> None:
        """Nobody to punish."""

    def diverged(self, worker: str) -> None:
        """Nobody drafts."""

    def note(self, worker: str, reason: str, text: str) -> None:
        """Nothing to note."""


def why_none(linked: Iterable[LinkedWorker], groups: frozenset[str]) -> str:
    """Why no worker drafts, for the usage."""
    if all(worker.groups & groups for worker in linked):
        return "no worker is linked"
    return f"no worker of this API key's groups ({', '.join(sorted(groups))}) is linked"


@dataclass(slots=True)
class Offloading:
    """The assignments of all requests to workers. `post` hands a call to the event loop, in order."""

    workers: Workers
    active: Mapping[int, Active]
    post: Callable[[Callable[[], None]], None]
    on_fault: Callable[[Active, str, Exception], None]
    """Told of an exception in one request's own handling of a frame."""
    frames: dict[str, int] = field(default_factory=lambda: {"received": 0, "used": 0, "stale": 0, "rejected": 0})
    audit: Audit = field(default_factory=NoAudit)

    def assign(self, active: Active) -> None:
        """Finds a worker for a request that may have one, and tells it the whole prefix."""
        if not active.offload or active.assignment is not None:
            return
        load = [other.assignment.worker for other in self.active.values() if other.assignment]
        linked = self.workers.linked()
        views = (WorkerView(w.id, w.rtt_s, w.step_s, w.paused, load.count(w.id), w.groups) for w in linked.values())
        groups = active.request.groups
        worker = choose(views, groups, exclude=active.shunned)
        active.usage.why_off = None if worker else why_none(linked.values(), groups)
        if worker is not None:
            name = linked[worker].name or worker
            active.usage.workers = list(dict.fromkeys([*active.usage.workers, name]))
            self.audit.assigned(active.request, worker, name)
            for body in active.assign(worker, name):
                self._send(worker, body)

    def assign_all(self) -> None:
        """A worker was linked or resumed: requests without one may use it."""
        for active in self.active.values():
            self.assign(active)

    def lose(self, worker: str) -> None:
        """A worker went, paused or was revoked: its requests move on at once, its candidates are dropped."""
        for active in self._drafted_by(worker):
            self.release(active, "moved")
            active.tree.discard(worker)
            self.assign(active)

    def decline(self, worker: str, request: int) -> None:
        """A worker will not draft for this request."""
        active = self.active.get(request)
        if active is not None and active in self._drafted_by(worker):
            active.shunned.add(worker)
            self.release(active, "declined")
            self.assign(active)

    def take(self, worker: str, frame: Tree, now: float) -> None:
        """Merges a frame. One of an ended request or old epoch is stale; what no honest worker sends is punished."""
        self.frames["received"] += 1
        active = self.active.get(frame.request)
        assignment = active.assignment if active else None
        if active is None or assignment is None or (assignment.worker, assignment.epoch) != (worker, frame.epoch):
            self.frames["stale"] += 1
            return
        with Caught() as caught:
            merged = active.take(frame, now)
        if isinstance(caught.error, RemoteProtocolError):
            self.reject(active, worker, caught.error)
        elif caught.error is not None:
            self.on_fault(active, "merging a frame", caught.error)
        else:
            assignment.frames += bool(merged.fresh)
            self._count(worker, frame, merged)

    def _count(self, worker: str, frame: Tree, merged: Merged) -> None:
        self.frames["used" if merged.fresh else "stale"] += 1
        if not merged.prefix:
            text = f"a tree for request {frame.request} names {frame.prefix_len} tokens that never were its prefix"
            self.post(lambda: self.workers.note(worker, "prefix", text))

    def commit(self, active: Active, tokens: list[int], *, at_leaf: bool) -> None:
        """Tells the worker what the target chose (step 5 of WANSpec's figure 6).

        `at_leaf`: the walk ended where no candidate was known; otherwise the target left what was drafted.
        """
        assignment = active.assignment
        if assignment is None:
            return
        if not at_leaf:
            self.post(lambda: self.workers.diverged(assignment.worker))
        prefix = active.tree.prefix
        body = Commit(active.id, assignment.epoch, len(prefix) - len(tokens), tokens, prefix.digest)
        self._send(assignment.worker, body)

    def release(self, active: Active, reason: str) -> None:
        """Takes a request away from its worker."""
        given = active.assignment
        close = active.release(reason)
        if given is not None and close is not None:
            self._send(given.worker, close)
            self.audit.released(active.request, given.worker, given.name, reason, given.frames)

    def link_of(self, active: Active) -> LinkView | None:
        """What the controller may know of the request's worker; None while nobody drafts for it."""
        assignment = active.assignment
        worker = self.workers.linked().get(assignment.worker) if assignment else None
        if assignment is None or worker is None:
            return None
        return LinkView(worker.rtt_s, worker.rtt_high_s, worker.step_s, assignment.ready)

    def _drafted_by(self, worker: str) -> Iterable[Active]:
        return [a for a in self.active.values() if a.assignment is not None and a.assignment.worker == worker]

    def reject(self, active: Active, worker: str, error: RemoteProtocolError) -> None:
        """What breaks the protocol, or the gateway's own code, costs its sender the link and the request nothing."""
        active.usage.frames["rejected"] += 1
        self.frames["rejected"] += 1
        active.shunned.add(worker)
        self.post(lambda: self.workers.punish(worker, error))
        self.lose(worker)

    def _send(self, worker: str, body: Open | Commit | Close) -> None:
        self.post(lambda: self.workers.send(worker, body))
