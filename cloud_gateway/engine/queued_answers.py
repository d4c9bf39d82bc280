"""Answers that are written to a prompt while its request waits for a slot (QueueSpec), and earlier completions.

They are candidates only, for source `answers` of the request. Idle workers write, of those that may draft for the
request when it runs: each one answer at a time, and another worker where the first is lost or silent (`Askings`). A
running request that needs the worker comes first. The local draft writes too, one answer at a time. Lives on the
engine's thread.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.policies.policy import catch_up_batch
from cloud_gateway.core.requests.accounting import Stats
from cloud_gateway.core.requests.assignment import Askings, RemoteAnswer, patience
from cloud_gateway.core.requests.events import (
    FrameArrived,
    FrameTaken,
    Note,
    PromptSent,
    PromptWithdrawn,
    Send,
    Spent,
    WaitingFrame,
)
from cloud_gateway.core.requests.router import LinkedWorker, choose
from cloud_gateway.core.sources.answers import Answers, Archive
from cloud_gateway.core.sources.interface import KEPT_TOKENS, QUEUED_TOKENS, SourceSettings
from cloud_gateway.engine.exchange import Active, Declined, Waiting
from cloud_gateway.engine.local_draft import DraftTimer
from cloud_gateway.engine.pool import WorkerPool, scope_for
from cloud_gateway.models.drafts import DraftModel
from edgespec.core.drafting.ranking import Asked, Ranker, Spread
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import Sampling, ToWorker
from edgespec.shared.contained import Contained, describe_fault

log = logging.getLogger("cloud_gateway.engine.queued")

REST = 3.0
"""Time between two passes, in passes: running requests keep three quarters of theirs."""
NEVER = float("inf")
OTHER_TEMPERATURE = 0.7
"""Of the second answer and further ones, where the request's is lower: they have to differ from the first."""
FIRST_NUMBER = 1 << 62
"""Answers are numbered from here on the wire, where no request of a client gets to."""


class AnswerJob(NamedTuple):
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


class LocalAnswer(NamedTuple):
    """What the local draft writes, as far as it is written. The draft model has it under the request's number negated,
    since a running request has that number."""

    job: AnswerJob
    ranker: Ranker
    tokens: list[int]


@dataclass(slots=True, eq=False)
class WorkerAnswer:
    """What a worker writes."""

    job: AnswerJob
    worker: LinkedWorker
    answer: RemoteAnswer
    due: float
    """When the worker has to have brought it further, in seconds of the engine's clock."""
    frames: int = field(default=0, init=False)
    """Frames of the worker that brought candidates."""


class QueuedAnswers:
    """Gives each request what there is when it gets its slot. It knows the workers, and nothing of other requests."""

    def __init__(
        self,
        pool: WorkerPool,
        model: DraftModel | None,
        verify_s: StepCurve,
        clock: Callable[[], float],
        stats: Stats,
        settings: SourceSettings,
        eos: Iterable[int],
    ) -> None:
        """`model`: the local draft; `verify_s`: seconds of a target pass by its rows."""
        self._pool = pool
        self._model = model
        self._verify_s = verify_s
        self._clock = clock
        self._stats = stats
        self._settings = settings
        self._eos = frozenset(eos)
        self._archive = Archive(KEPT_TOKENS)
        self._askings: dict[int, Askings] = {}
        """By the requests that wait."""
        self._local: LocalAnswer | None = None
        self._remote: dict[int, WorkerAnswer] = {}
        """By their numbers on the wire."""
        self._numbers = itertools.count(FIRST_NUMBER)
        self._next_at = 0.0

    # --- the requests --------------------------------------------------------------------------------------------

    def give(self, active: Active) -> None:
        """The request gets its slot. An unfinished answer is used as it is, and earlier ones are looked up."""
        began = self._clock()
        self._stop(active, "admitted")
        source = _source_of(active)
        if active.ran or source is None:
            return

        for completion in self._archive.find(active.request.cache_scope, active.request.tokens):
            source.add(completion)
        now = self._clock()
        active.generation.note(Spent("source", now - began, name=source.name), now)

    def ended(self, active: Active) -> None:
        """The request is over; what it emitted may serve the next one of the same conversation."""
        self._stop(active, "cancelled")
        if _source_of(active) is not None:
            request = active.request
            completion = active.generation.tree.prefix.tokens[len(request.tokens) :]
            self.keep(request.cache_scope, request.tokens, completion)

    def keep(self, scope: bytes, prompt: Sequence[int], completion: Sequence[int]) -> None:
        """Requests of this scope and conversation are given the completion as another answer."""
        self._archive.keep(scope, prompt, completion)

    def _stop(self, active: Active, why: str) -> None:
        """The request waits no more."""
        for writing in list(self._remote.values()):
            if writing.job.active is active:
                writing.answer.advance()
                self._end_remote(writing, why)
        if self._local is not None and self._local.job.active is active:
            self._end_local(self._local)
        self._askings.pop(active.id, None)

    def _claim(self, waiting: Sequence[Active], may: Callable[[Active, Askings], bool]) -> AnswerJob | None:
        """The next answer for a request that fulfils the condition; it counts as asked for from then on. Every request
        gets its first one before any gets a second one."""
        candidates: list[tuple[Askings, Active]] = []
        for active in waiting:
            if active.ran or _source_of(active) is None:
                continue
            askings = self._askings.setdefault(active.id, Askings())
            if askings.next < self._settings.queued_answers and may(active, askings):
                candidates.append((askings, active))
        if not candidates:
            return None

        askings, active = min(candidates, key=lambda pair: pair[0].next)
        number = askings.take()
        limit = min(QUEUED_TOKENS, active.request.max_tokens)
        stops = self._eos
        if active.request.ignore_eos:
            stops = frozenset()
        sampling = _sampling(active.generation.assignments.sampling, number)
        return AnswerJob(active, askings, number, sampling, limit, stops)

    # --- workers -------------------------------------------------------------------------------------------------

    def lead(self, queue: Waiting[Active], idle_workers: Callable[[], dict[str, LinkedWorker]]) -> None:
        """Commits progress of running answers, and starts new ones on workers that draft for no request."""
        if not self._settings.queued_answers:
            return

        now = self._clock()
        for writing in list(self._remote.values()):
            self._lead_on(writing, now)

        waiting = queue.all()
        if not waiting:
            return

        busy = {writing.worker.id for writing in self._remote.values()}
        idle = {name: worker for name, worker in idle_workers().items() if name not in busy}
        while idle:
            job = self._claim(waiting, lambda active, askings: self._choose(active, askings, idle) is not None)
            if job is None:
                return
            worker = self._choose(job.active, job.askings, idle)
            assert worker is not None
            self._begin_remote(job, idle.pop(worker), now)

    def _lead_on(self, writing: WorkerAnswer, now: float) -> None:
        """Commits what has arrived; a worker that brought nothing for too long is asked no more."""
        commit = writing.answer.advance()
        if writing.answer.done:
            self._end_remote(writing, "written")
        elif commit is not None:
            self._send(writing, commit)
            writing.due = now + patience(writing.worker.rtt_high_s, writing.worker.step_s, 0)
        elif now >= writing.due:
            self._lose(writing, "silent")

    def _choose(self, active: Active, askings: Askings, idle: Mapping[str, LinkedWorker]) -> str | None:
        """The worker that is asked for an answer to this prompt; None if none of those may be."""
        assignments = active.generation.assignments
        if not assignments.allowed:
            return None
        exclude = assignments.excluded | askings.lost_by
        return choose(idle.values(), {}, active.request.groups, self._pool.merit, exclude=exclude)

    def _begin_remote(self, job: AnswerJob, worker: LinkedWorker, now: float) -> None:
        request = job.active.request
        answer = RemoteAnswer(next(self._numbers), request.tokens, job.limit, job.stops)
        due = now + patience(worker.rtt_high_s, worker.step_s, len(request.tokens))
        writing = WorkerAnswer(job, worker, answer, due)
        self._remote[answer.number] = writing
        self._note(writing, PromptSent(worker.id, worker.label))
        for body in answer.open(job.sampling, scope_for(worker.id, request.cache_scope)):
            self._send(writing, body)

    def frame_arrived(self, event: FrameArrived) -> FrameTaken | None:
        """Merges a frame into the answer that its worker writes; None if the worker writes none of that number.

        The caller carries out what follows from the frame, as for a request that runs.
        """
        writing = self._remote.get(event.frame.request)
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
        writing = self._remote.get(event.request)
        if writing is not None and writing.worker.id == event.worker:
            writing.job.active.generation.assignments.excluded.add(event.worker)
            self._lose(writing, "declined")

    def release(self, worker: str, why: str) -> None:
        """A worker is gone, or a running request needs it; what it has written stays."""
        for writing in list(self._remote.values()):
            if writing.worker.id == worker:
                self._lose(writing, why)

    def _lose(self, writing: WorkerAnswer, why: str) -> None:
        """What it has written stays, and the answer is asked for again."""
        writing.job.askings.lose(writing.job.number, writing.worker.id)
        self._end_remote(writing, why)

    def _end_remote(self, writing: WorkerAnswer, why: str) -> None:
        self._close(writing, why)
        _add(writing.job.active, writing.answer.tokens)

    def _close(self, writing: WorkerAnswer, why: str) -> None:
        del self._remote[writing.answer.number]
        self._send(writing, writing.answer.close(why))
        self._note(writing, PromptWithdrawn(writing.worker.id, writing.worker.label, why, writing.frames))

    def _broken(self, writing: WorkerAnswer, error: Exception) -> RemoteProtocolError:
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

    def _note(self, writing: WorkerAnswer, note: Note) -> None:
        writing.job.active.generation.note(note, self._clock())

    def _send(self, writing: WorkerAnswer, body: ToWorker) -> None:
        self._pool.send(Send(writing.worker.id, body))

    # --- the local draft -----------------------------------------------------------------------------------------

    def turn(self, queue: Waiting[Active]) -> float:
        """Runs one draft pass for a request that waits, if one is due; returns when the next may be due."""
        model = self._model
        if model is None or not self._settings.queued_answers or not (self._local or len(queue)):
            return NEVER
        if self._clock() < self._next_at:
            return self._next_at

        timer = DraftTimer(model, self._clock)
        writing = self._local or self._begin_local(model, queue.all())
        if writing is None:
            return NEVER

        with Contained() as caught:
            self._write(model, writing)
        cost = timer.cost()

        self._next_at = cost.ended + REST * cost.seconds
        self._stats.drafted(cost.passes, cost.seconds)
        active = writing.job.active
        active.generation.note(Spent("draft", cost.seconds, cost.passes), cost.ended)
        if caught.error is not None:  # no memory for it, mostly: it is not tried again
            log.info("request %d waits without a draft: %s", active.id, describe_fault(caught.error))
            writing.job.askings.stop()
            self._end_local(writing)
        return self._next_at

    def _begin_local(self, model: DraftModel, waiting: Sequence[Active]) -> LocalAnswer | None:
        job = self._claim(waiting, lambda active, askings: True)
        if job is None:
            return None

        request = job.active.request
        with Contained() as caught:
            model.open(-job.active.id, request.tokens, request.cache_scope)
        if caught.error is not None:
            job.askings.stop()
            return None

        self._local = LocalAnswer(job, Ranker(job.sampling, request.tokens, spread=Spread(fixed=1.0)), [])
        return self._local

    def _write(self, model: DraftModel, writing: LocalAnswer) -> None:
        """Reads one batch of the prompt, or writes one token."""
        job = writing.job
        key = -job.active.id
        if model.backlog(key) > 1:
            model.catch_up(key, catch_up_batch(self._verify_s, model.token_s))
            return

        ((proposal,),) = model.draft([Asked(key, [()], 1, writing.ranker)])
        token = proposal.tokens[0]
        writing.tokens.append(token)
        writing.ranker.committed([token])
        if token in job.stops or len(writing.tokens) >= job.limit:
            self._end_local(writing)
        else:
            model.commit(key, [token])

    def _end_local(self, writing: LocalAnswer) -> None:
        """The answer is as long as it gets."""
        self._local = None
        assert self._model is not None
        with Contained():
            self._model.close(-writing.job.active.id)
        _add(writing.job.active, writing.tokens)


def _source_of(active: Active) -> Answers | None:
    """The request's source `answers`, where it has one."""
    sources = active.generation.sources
    if sources is None:
        return None
    return sources.answers


def _add(active: Active, answer: Sequence[int]) -> None:
    if (source := _source_of(active)) is not None:
        source.add(answer)


def _sampling(asked: Sampling, number: int) -> Sampling:
    """Of the answer of this number: the first one as the request is sampled, as far as its seed may be used."""
    if number == 0 and (asked.seed is not None or asked.temperature == 0):
        return asked
    return replace(asked, temperature=max(asked.temperature, OTHER_TEMPERATURE), seed=number)
