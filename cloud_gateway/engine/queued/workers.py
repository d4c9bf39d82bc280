"""Idle workers write answers to prompts whose requests wait for a slot (QueueSpec). Lives on the engine's thread.

Only workers that may draft for the request when it runs are asked, each for one answer at a time, and another one where
the first is lost or silent (askings.py). Answers are candidates only, as the local draft's are (drafts.py).
A running request that needs the worker comes first.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cloud_gateway.core.requests.askings import Askings, patience
from cloud_gateway.core.requests.events import Event, FrameArrived, FrameTaken, Send, Spent
from cloud_gateway.core.requests.merit import Merit
from cloud_gateway.core.requests.remote_answer import RemoteAnswer
from cloud_gateway.core.requests.router import LinkedWorker, choose
from cloud_gateway.core.sources.answers import Answers
from cloud_gateway.engine.exchange import Active, Audit, Declined
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import Sampling, ToWorker
from edgespec.shared.contained import Contained, describe_fault

log = logging.getLogger("cloud_gateway.engine.queued")

FIRST_NUMBER = 1 << 62
"""Answers are numbered from here on the wire, where no request of a client gets to."""


class Dispatch(Protocol):
    """What is needed of `Offloading`, which has the workers."""

    @property
    def audit(self) -> Audit: ...
    @property
    def merit(self) -> Merit: ...
    @property
    def step(self) -> Callable[[Active, Event], None]: ...
    def idle(self) -> dict[str, LinkedWorker]: ...
    def send(self, message: Send) -> None: ...
    def note(self, taken: FrameTaken) -> None: ...
    def punish(self, worker: str, error: RemoteProtocolError, request: int) -> None: ...


class Wanted(NamedTuple):
    """One answer that is to be written."""

    active: Active
    askings: Askings
    number: int
    """Among the answers of its request."""
    sampling: Sampling
    limit: int
    """Most tokens."""
    stops: Set[int]
    """Tokens that end it."""


May = Callable[[Active, Set[str]], bool]
"""Whether somebody may write for this request, to which these workers were lost."""
Claim = Callable[[Sequence[Active], May], Wanted | None]
"""The next answer for one of the requests that wait and fulfil the condition; it counts as asked for from then on."""


@dataclass(slots=True, eq=False)
class _Writing:
    wanted: Wanted
    worker: LinkedWorker
    answer: RemoteAnswer
    due: float
    """When the worker has to have brought it further."""
    frames: int = 0
    """Of the worker, that brought candidates."""

    @property
    def active(self) -> Active:
        """The request that waits."""
        return self.wanted.active


class QueueWorkers:
    """The answers that workers write now."""

    def __init__(self, offloading: Dispatch) -> None:
        self._offloading = offloading
        self._numbers = itertools.count(FIRST_NUMBER)
        self._writing: dict[int, _Writing] = {}
        """By their numbers on the wire."""
        self.answers = 0
        """Written so far, those cut short included."""

    def turn(self, waiting: Sequence[Active], claim: Claim, now: float) -> None:
        """Leads on those that write, and lets idle workers begin."""
        for writing in list(self._writing.values()):
            commit = writing.answer.advance()
            if writing.answer.done:
                self._end(writing, "written")
            elif commit is not None:
                self._send(writing, commit)
                writing.due = now + patience(writing.worker.rtt_high_s, writing.worker.step_s, 0)
            elif now >= writing.due:
                self._lose(writing, "silent")
        idle = self._idle() if waiting else {}

        def may(active: Active, lost_by: Set[str]) -> bool:
            return _chosen(active, lost_by, idle, self._offloading.merit) is not None

        while idle and (wanted := claim(waiting, may)) is not None:
            worker = _chosen(wanted.active, wanted.askings.lost_by, idle, self._offloading.merit)
            assert worker is not None
            self._begin(wanted, idle.pop(worker), now)

    def frame_arrived(self, event: FrameArrived) -> bool:
        """Merges a frame; whether it belongs to an answer that its worker writes."""
        writing = self._writing.get(event.frame.request)
        if writing is None or writing.worker.id != event.worker:
            return False
        with Contained() as caught:
            merged = writing.answer.merge(event.frame, event.worker)
        if caught.error is not None:
            self._book(writing, "rejected")
            self._punish(writing, caught.error)
            return True
        kind = "used" if merged.fresh else "stale"
        writing.frames += bool(merged.fresh)
        self._book(writing, kind)
        self._offloading.note(FrameTaken(kind, event.worker, merged))
        return True

    def declined(self, event: Declined) -> None:
        """A worker writes no answer to this prompt, nor does it draft for it."""
        writing = self._writing.get(event.request)
        if writing is not None and writing.worker.id == event.worker:
            writing.active.generation.assignments.excluded.add(event.worker)
            self._lose(writing, "declined")

    def release(self, worker: str, why: str) -> None:
        """A worker is gone, or a running request needs it; what it has written stays."""
        for writing in list(self._writing.values()):
            if writing.worker.id == worker:
                self._lose(writing, why)

    def stop(self, active: Active, why: str) -> None:
        """The request waits no more; unfinished answers are as good as they go."""
        for writing in list(self._writing.values()):
            if writing.active is active:
                writing.answer.advance()
                self._end(writing, why)

    def _idle(self) -> dict[str, LinkedWorker]:
        """The workers that have no request and write no answer."""
        writing = {writing.worker.id for writing in self._writing.values()}
        found = self._offloading.idle().items()
        return {name: worker for name, worker in found if name not in writing}

    def _begin(self, wanted: Wanted, worker: LinkedWorker, now: float) -> None:
        request = wanted.active.request
        answer = RemoteAnswer(next(self._numbers), request.tokens, wanted.limit, wanted.stops)
        due = now + patience(worker.rtt_high_s, worker.step_s, len(request.tokens))
        writing = self._writing[answer.number] = _Writing(wanted, worker, answer, due)
        self._offloading.audit.assigned(request, worker.id, worker.label)
        self._book(writing)
        for body in answer.open(wanted.sampling, scope_for(worker.id, request.cache_scope)):
            self._send(writing, body)

    def _lose(self, writing: _Writing, why: str) -> None:
        """What it has written stays, and the answer is asked for again."""
        writing.wanted.askings.lose(writing.wanted.number, writing.worker.id)
        self._end(writing, why)

    def _end(self, writing: _Writing, why: str) -> None:
        del self._writing[writing.answer.number]
        self._close(writing, why)
        self.answers += 1
        if (source := source_of(writing.active)) is not None:
            source.add(writing.answer.tokens)

    def _close(self, writing: _Writing, why: str) -> None:
        self._send(writing, writing.answer.close(why))
        worker = writing.worker
        self._offloading.audit.released(writing.active.request, worker.id, worker.label, why, writing.frames)

    def _punish(self, writing: _Writing, error: Exception) -> None:
        """It broke the protocol, or its data the gateway's own code: its answer is dropped and its link ends."""
        if not isinstance(error, RemoteProtocolError):
            log.error("an answer of worker %s led to a fault: %s", writing.worker.id, describe_fault(error))
            error = RemoteProtocolError("fault", "its answer led to a fault of this gateway")
        writing.active.generation.assignments.excluded.add(writing.worker.id)
        writing.wanted.askings.lose(writing.wanted.number, writing.worker.id)
        del self._writing[writing.answer.number]
        self._offloading.punish(writing.worker.id, error, writing.answer.number)
        self._close(writing, "moved")

    def _book(self, writing: _Writing, frame: str = "") -> None:
        worker = writing.worker
        self._offloading.step(writing.active, Spent("answer", name=worker.label, worker=worker.id, frame=frame))

    def _send(self, writing: _Writing, body: ToWorker) -> None:
        self._offloading.send(Send(writing.worker.id, body))


def source_of(active: Active) -> Answers | None:
    """The request's source `answers`, where it has one."""
    sources = active.generation.sources
    return None if sources is None else sources.answers


def _chosen(active: Active, lost_by: Set[str], idle: dict[str, LinkedWorker], merit: Merit) -> str | None:
    """The worker that is asked for an answer to this prompt; None where none of these may be."""
    generation = active.generation
    if not generation.assignments.allowed:
        return None
    return choose(idle.values(), {}, active.request.groups, merit, exclude=generation.assignments.excluded | lost_by)


def scope_for(worker: str, scope: bytes) -> bytes:
    """A cache scope as it is sent to one worker, so that two workers cannot find out that they serve the same key."""
    data = b"edgespec/1 cache scope\0" + scope + worker.encode()
    return hashlib.sha256(data).digest()[: len(scope)]
