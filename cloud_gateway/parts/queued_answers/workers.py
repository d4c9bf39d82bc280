"""Answers that idle workers write to prompts that wait: each one at a time, and another worker if the first is lost.

A worker is asked only if it may draft for the request when that runs. A running request that needs it comes first.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cloud_gateway.core.requests.events import (
    FrameArrived,
    FrameTaken,
    Note,
    PromptSent,
    PromptWithdrawn,
    Send,
    WaitingFrame,
)
from cloud_gateway.core.requests.router import LinkedWorker, choose
from cloud_gateway.engine.exchange import Active, Declined
from cloud_gateway.engine.pool import scope_for
from cloud_gateway.engine.queue_work import Idle, Lent
from cloud_gateway.parts.queued_answers.jobs import AnswerJob, Askings, Jobs
from cloud_gateway.parts.queued_answers.written import WrittenAnswer
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import ToWorker
from edgespec.shared.contained import Contained, describe_fault

log = logging.getLogger("cloud_gateway.parts.queued_answers.workers")

FIRST_NUMBER = 1 << 62
"""Answers are numbered from here on the wire, where no request of a client gets to."""
MIN_PATIENCE_S = 2.0
STEPS = 16
"""Draft steps without a further token of the answer: a worker that drafts for others too may be that late."""
READ_A_STEP = 2
"""Tokens of a prompt that a worker reads in the time of a step, at least: a batch computes several at once."""


def patience(rtt_s: float, step_s: float, unread: int) -> float:
    """Seconds in which a worker has to bring an answer further; `unread`: tokens of the prompt to be read before."""
    return MIN_PATIENCE_S + rtt_s + step_s * (STEPS + unread / READ_A_STEP)


@dataclass(slots=True, eq=False)
class Writing:
    """What one worker writes."""

    job: AnswerJob
    worker: LinkedWorker
    answer: WrittenAnswer
    due: float
    """When the worker has to have brought it further, in seconds of the engine's clock."""
    frames: int = field(default=0, init=False)
    """Frames of the worker that brought candidates."""


class AnsweringWorkers:
    """Leads the workers that write answers."""

    def __init__(self, jobs: Jobs, lent: Lent) -> None:
        self._jobs = jobs
        self._pool = lent.pool
        self._clock = lent.clock
        self._writings: dict[int, Writing] = {}
        """By their numbers on the wire."""
        self._numbers = itertools.count(FIRST_NUMBER)

    def lead(self, waiting: Sequence[Active], idle: Idle) -> None:
        """Commits progress of running answers, and starts new ones on idle workers."""
        now = self._clock()
        for writing in list(self._writings.values()):
            self._lead_on(writing, now)
        if not waiting:
            return

        busy = {writing.worker.id for writing in self._writings.values()}
        free = {name: worker for name, worker in idle().items() if name not in busy}
        while free:
            job = self._jobs.claim(waiting, lambda active, askings: self._choose(active, askings, free) is not None)
            if job is None:
                return
            worker = self._choose(job.active, job.askings, free)
            assert worker is not None
            self._begin(job, free.pop(worker), now)

    def left(self, active: Active, why: str) -> None:
        """Its request waits no more: what has arrived is used."""
        for writing in list(self._writings.values()):
            if writing.job.active is active:
                writing.answer.advance()
                self._end(writing, why)

    def frame_arrived(self, event: FrameArrived) -> FrameTaken | None:
        """Merges a frame into the answer that its worker writes; None if the worker writes none of that number."""
        writing = self._writings.get(event.frame.request)
        if writing is None or writing.worker.id != event.worker:
            return None

        with Contained() as caught:
            merged = writing.answer.merge(event.frame, event.worker)
        if caught.error is not None:
            self._note(writing, WaitingFrame(event.worker, writing.worker.label, "rejected"))
            return FrameTaken("rejected", event.worker, error=self._broken(writing, caught.error))

        kind = "stale"
        if merged.fresh:
            kind = "used"
            writing.frames += 1
        self._note(writing, WaitingFrame(event.worker, writing.worker.label, kind))
        return FrameTaken(kind, event.worker, merged)

    def declined(self, event: Declined) -> None:
        """A worker writes no answer to this prompt, nor does it draft for it."""
        writing = self._writings.get(event.request)
        if writing is not None and writing.worker.id == event.worker:
            writing.job.active.generation.assignments.excluded.add(event.worker)
            self._lose(writing, "declined")

    def release(self, worker: str, why: str) -> None:
        """A worker is gone, or a running request needs it; what it has written stays."""
        for writing in list(self._writings.values()):
            if writing.worker.id == worker:
                self._lose(writing, why)

    def _lead_on(self, writing: Writing, now: float) -> None:
        """Commits what has arrived; a worker that brought nothing for too long is asked no more."""
        commit = writing.answer.advance()
        if writing.answer.done:
            self._end(writing, "written")
        elif commit is not None:
            self._send(writing, commit)
            writing.due = now + patience(writing.worker.rtt_high_s, writing.worker.step_s, 0)
        elif now >= writing.due:
            self._lose(writing, "silent")

    def _choose(self, active: Active, askings: Askings, free: Mapping[str, LinkedWorker]) -> str | None:
        """The worker that is asked for an answer to this prompt; None if none of those may be."""
        assignments = active.generation.assignments
        if not assignments.allowed:
            return None

        exclude = assignments.excluded | askings.lost_by
        return choose(free.values(), {}, active.request.groups, self._pool.merit, exclude=exclude)

    def _begin(self, job: AnswerJob, worker: LinkedWorker, now: float) -> None:
        request = job.active.request
        answer = WrittenAnswer(next(self._numbers), request.tokens, job.limit, job.stops)
        due = now + patience(worker.rtt_high_s, worker.step_s, len(request.tokens))
        writing = Writing(job, worker, answer, due)
        self._writings[answer.number] = writing
        self._note(writing, PromptSent(worker.id, worker.label))
        for body in answer.open(job.sampling, scope_for(worker.id, request.cache_scope)):
            self._send(writing, body)

    def _lose(self, writing: Writing, why: str) -> None:
        """What it has written stays, and the answer is asked for again."""
        writing.job.askings.lose(writing.job.number, writing.worker.id)
        self._end(writing, why)

    def _end(self, writing: Writing, why: str) -> None:
        self._close(writing, why)
        writing.job.done(writing.answer.tokens)

    def _close(self, writing: Writing, why: str) -> None:
        del self._writings[writing.answer.number]
        self._send(writing, writing.answer.close(why))
        self._note(writing, PromptWithdrawn(writing.worker.id, writing.worker.label, why, writing.frames))

    def _broken(self, writing: Writing, error: Exception) -> RemoteProtocolError:
        """The worker broke the protocol, or its data the gateway's own code: its answer is dropped. What to end its
        link with."""
        worker = writing.worker.id
        writing.job.active.generation.assignments.excluded.add(worker)
        writing.job.askings.lose(writing.job.number, worker)
        self._close(writing, "moved")
        if isinstance(error, RemoteProtocolError):
            return error

        log.error("an answer of worker %s led to a fault: %s", worker, describe_fault(error))
        return RemoteProtocolError("fault", "its answer led to a fault of this gateway")

    def _note(self, writing: Writing, note: Note) -> None:
        writing.job.active.generation.note(note, self._clock())

    def _send(self, writing: Writing, body: ToWorker) -> None:
        self._pool.send(Send(writing.worker.id, body))
