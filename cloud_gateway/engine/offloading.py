"""Who drafts for which request: assignment, commits, and moving on when a worker goes (engine thread)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from cloud_gateway.core.policies.policy import LinkView
from cloud_gateway.core.policies.settings import DEFAULTS
from cloud_gateway.core.requests.events import Event, FrameTaken, Released, Send, WorkerChanged
from cloud_gateway.core.requests.router import LinkedWorker, Merit, choose
from cloud_gateway.engine.exchange import Active, Declined, WorkerGone
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import ToWorker


class Workers:
    """The link layer as the engine sees it: `linked` and `view` on the engine's thread, the rest on the event loop.

    This one is that of a gateway without links, which decodes everything itself.
    """

    def linked(self) -> Mapping[str, LinkedWorker]:
        """Workers by id, the paused ones included; the mapping is live, so that asking costs nothing."""
        return {}

    def view(self, worker: str) -> LinkedWorker | None:
        """One of them, asked for at every decision."""
        return self.linked().get(worker)

    def send(self, worker: str, bodies: Sequence[ToWorker]) -> None:
        """Sends messages, in one frame if they fit; those to a worker that has gone are dropped."""

    def punish(self, worker: str, error: RemoteProtocolError, request: int) -> None:
        """Ends the link of a worker that broke the protocol over this request."""

    def audited(self, worker: str, key: str, claimed: float, accepted: int) -> None:
        """How far a worker's candidates for one request of an API key were what it claimed."""

    def diverged(self, worker: str) -> None:
        """The target left what the worker had drafted for a request."""

    def note(self, worker: str, reason: str, text: str) -> None:
        """Counts and logs something that was dropped but does not end the link."""


def scope_for(worker: str, scope: bytes) -> bytes:
    """A cache scope as it is sent to one worker, so that two workers cannot find out that they serve the same key."""
    data = b"edgespec/1 cache scope\0" + scope + worker.encode()
    return hashlib.sha256(data).digest()[: len(scope)]


def why_none(linked: Collection[LinkedWorker], groups: frozenset[str], load: Mapping[str, int]) -> str:
    """Why no worker drafts, for the usage."""
    if any(one.groups & groups and not one.paused and not one.takes(load.get(one.id, 0)) for one in linked):
        return "every worker has as many requests as it takes"
    if all(worker.groups & groups for worker in linked):
        return "no worker is linked"
    return f"no worker of this API key's groups ({', '.join(sorted(groups))}) is linked"


@dataclass(slots=True)
class Offloading:
    """Which worker drafts for which request. `post` hands a call to the event loop, in order."""

    workers: Workers
    active: Mapping[int, Active]
    post: Callable[[Callable[[], None]], None]
    step: Callable[[Active, Event], None]
    workers_per_request: int = DEFAULTS.workers_per_request
    merit: Merit = field(default_factory=Merit)
    let_go: Callable[[str, str], None] = lambda worker, why: None
    """Called where a worker, for this reason, has no time for answers to prompts that wait (queued_answers.py)."""
    _outgoing: dict[str, list[ToWorker]] = field(default_factory=dict)
    _changed: bool = False
    """Whether workers may have become idle since `share` last looked."""

    def assign(self, active: Active, useless: str | None = None) -> None:
        """Finds a worker for a request that may have one; `useless`: in the place of this one, if there is another."""
        generation = active.generation
        groups = active.request.groups
        if not (generation.may_offload if useless else generation.wants_worker):
            return

        linked = dict(self.workers.linked())  # a copy: the link layer changes its own meanwhile
        load = self._load()
        present = generation.assignments.given.keys()
        worker = choose(
            linked.values(),
            load,
            groups,
            self.merit,
            exclude=generation.assignments.excluded | present,
            explore=not useless and self.merit.explores(),
        )
        if worker is None:
            if not useless:
                self.step(active, WorkerChanged("", "none", why_none(linked.values(), groups, load)))
            return

        if useless:
            self.step(active, WorkerChanged(useless, "useless"))
        self._free(worker)
        self._give(active, linked[worker], beside=bool(present - {useless}))

    def _load(self) -> Counter[str]:
        """Requests by the worker that drafts for them first."""
        firsts = (active.generation.assignment for active in self.active.values())
        return Counter(first.worker for first in firsts if first is not None)

    def _free(self, worker: str) -> None:
        """Takes a worker away from requests that it drafts for beside another one: they can do without it."""
        for active in list(self.active.values()):
            beside = list(active.generation.assignments.given)[1:]
            if worker in beside:
                self.step(active, WorkerChanged(worker, "needed"))

    def _give(self, active: Active, worker: LinkedWorker, *, beside: bool = False) -> None:
        self.let_go(worker.id, "needed elsewhere")
        self.merit.given(worker.label)
        scope = scope_for(worker.id, active.request.cache_scope)
        self.step(active, WorkerChanged(worker.id, "beside" if beside else "assigned", worker.label, scope))
        self._changed = True

    def share(self) -> None:
        """Gives workers to requests that have none, and idle ones to those that have one, up to `workers_per_request`.
        Asked every turn; it looks only where a worker was linked, given or released meanwhile."""
        if not self._changed:
            return
        self._changed = False
        for active in [one for one in self.active.values() if one.generation.wants_worker]:
            self.assign(active)
        if self.workers_per_request == 1:
            return
        linked = dict(self.workers.linked())
        busy = self._busy()
        for active in sorted(self.active.values(), key=lambda active: len(active.generation.assignments.given)):
            generation = active.generation
            given = generation.assignments.given.keys()
            sharing = generation.may_offload and given <= linked.keys()
            if not sharing or not 0 < len(given) < self.workers_per_request:
                continue
            idle = [view for view in linked.values() if view.id not in busy]
            worker = choose(idle, {}, active.request.groups, self.merit, exclude=generation.assignments.excluded)
            if worker is not None:
                busy.add(worker)
                self._give(active, linked[worker], beside=True)

    def idle(self) -> dict[str, LinkedWorker]:
        """The linked workers that draft for no request that runs."""
        busy = self._busy()
        return {name: worker for name, worker in dict(self.workers.linked()).items() if name not in busy}

    def _busy(self) -> set[str]:
        return {worker for active in self.active.values() for worker in active.generation.assignments.given}

    def worker_ready(self) -> None:
        """A worker was linked or resumed: requests without one may use it."""
        self._changed = True
        for active in list(self.active.values()):
            self.assign(active)

    def worker_gone(self, event: WorkerGone) -> None:
        """A worker went, paused or was revoked: its requests move on at once, its candidates are dropped."""
        for active in list(self.active.values()):
            self.step(active, WorkerChanged(event.worker, "gone"))
        self.let_go(event.worker, "moved")

    def declined(self, event: Declined) -> bool:
        """A worker will not draft for one request; whether that is one in a slot."""
        active = self.active.get(event.request)
        if active is not None:
            self.step(active, WorkerChanged(event.worker, "declined"))
        return active is not None

    def send(self, message: Send) -> None:
        """Queues a message for a worker, until the end of the turn."""
        if message.diverged:
            self.post(lambda: self.workers.diverged(message.worker))
        self._outgoing.setdefault(message.worker, []).append(message.body)

    def released(self, active: Active, released: Released) -> None:
        """Reports what a worker has brought for a request."""
        self._changed = True
        given = released.given
        key = active.request.key
        self.merit.ended(given.name, key, given.rounds, given.frames, given.brought)
        self.post(lambda: self.workers.audited(given.worker, key, given.claimed, given.accepted))

    def outgoing(self) -> Iterator[Callable[[], None]]:
        """What sends each worker its messages of this turn; for the event loop, before anything else of the turn."""
        messages = self._outgoing
        self._outgoing = {}
        for worker, bodies in messages.items():
            yield partial(self.workers.send, worker, bodies)

    def note(self, taken: FrameTaken) -> None:
        """Reports a frame of a prefix that never was."""
        if taken.unknown_prefix:
            text = "a tree names tokens that never were its request's prefix"
            self.post(lambda: self.workers.note(taken.worker, "prefix", text))

    def punish(self, worker: str, error: RemoteProtocolError, request: int) -> None:
        """Ends the link of a worker that broke the protocol, or the gateway's own code, and takes its requests away."""
        self.post(lambda: self.workers.punish(worker, error, request))
        self.worker_gone(WorkerGone(worker))

    def link_of(self, active: Active) -> LinkView | None:
        """What the controller may know of the request's worker; None while nobody drafts for it."""
        given = active.generation.assignment
        worker = self.workers.view(given.worker) if given else None
        if given is None or worker is None:
            return None
        return LinkView(worker.rtt_s, worker.rtt_high_s, worker.step_s, given.ready)
