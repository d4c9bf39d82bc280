"""Answers that are written to a prompt while its request waits for a slot (QueueSpec), and earlier completions.

They are candidates only, for source `answers` of the request. Idle workers write, of those that may draft for the
request when it runs: each one answer at a time, and another worker where the first is lost or silent (`Askings`). A
running request that needs the worker comes first. The local draft writes too, one answer at a time. Lives on the
engine's thread.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from cloud_gateway.core.policies.policy import catch_up_batch
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
from cloud_gateway.engine.local_draft import DraftTimer, LocalDrafting
from cloud_gateway.engine.offloading import Offloading, scope_for
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


class _Wanted(NamedTuple):
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


class _Own(NamedTuple):
    """What the local draft writes, as far as it is written. The draft model has it under the request's number negated,
    since a running request has that number."""

    wanted: _Wanted
    ranker: Ranker
    tokens: list[int]


@dataclass(slots=True, eq=False)
class _Remote:
    """What a worker writes."""

    wanted: _Wanted
    worker: LinkedWorker
    answer: RemoteAnswer
    due: float
    """When the worker has to have brought it further."""
    frames: int = field(default=0, init=False)
    """Of the worker, that brought candidates."""


class QueuedAnswers:
    """Gives each request what there is when it gets its slot."""

    def __init__(
        self, offloading: Offloading, local: LocalDrafting, settings: SourceSettings, eos: Iterable[int]
    ) -> None:
        self._offloading, self._local, self._settings, self._eos = offloading, local, settings, frozenset(eos)
        offloading.let_go = self.release
        self._archive = Archive(KEPT_TOKENS)
        self._askings: dict[int, Askings] = {}
        """By the requests that wait."""
        self._own: _Own | None = None
        self._remote: dict[int, _Remote] = {}
        """By their numbers on the wire."""
        self._numbers = itertools.count(FIRST_NUMBER)
        self._next_at = 0.0

    # --- the requests --------------------------------------------------------------------------------------------

    def give(self, active: Active) -> None:
        """The request gets its slot: an unfinished answer is as good as it goes, and earlier ones are looked up."""
        began = self._local.clock()
        self._stop(active, "admitted")
        if not active.ran and (source := _source_of(active)) is not None:
            for completion in self._archive.find(active.request.cache_scope, active.request.tokens):
                source.add(completion)
            now = self._local.clock()
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
        for one in list(self._remote.values()):
            if one.wanted.active is active:
                one.answer.advance()
                self._end_remote(one, why)
        if self._own is not None and self._own.wanted.active is active:
            self._end_own(self._own)
        self._askings.pop(active.id, None)

    def _claim(self, waiting: Sequence[Active], may: Callable[[Active, Askings], bool]) -> _Wanted | None:
        """The next answer for a request that fulfils the condition; it counts as asked for from then on. Every request
        gets its first one before any gets a second one."""
        known = (
            (self._askings.setdefault(one.id, Askings()), one)
            for one in waiting
            if not one.ran and _source_of(one) is not None
        )
        most = self._settings.queued_answers
        found = [(askings, one) for askings, one in known if askings.next < most and may(one, askings)]
        if not found:
            return None
        askings, active = min(found, key=lambda pair: pair[0].next)
        number = askings.take()
        limit = min(QUEUED_TOKENS, active.request.max_tokens)
        stops = frozenset[int]() if active.request.ignore_eos else self._eos
        sampling = _sampling(active.generation.assignments.sampling, number)
        return _Wanted(active, askings, number, sampling, limit, stops)

    # --- workers -------------------------------------------------------------------------------------------------

    def lead(self, queue: Waiting[Active]) -> None:
        """Leads on the workers that write, and lets idle ones begin, before the local draft does."""
        if not self._settings.queued_answers:
            return
        waiting, now = queue.all(), self._local.clock()
        for one in list(self._remote.values()):
            commit = one.answer.advance()
            if one.answer.done:
                self._end_remote(one, "written")
            elif commit is not None:
                self._send(one, commit)
                one.due = now + patience(one.worker.rtt_high_s, one.worker.step_s, 0)
            elif now >= one.due:
                self._lose(one, "silent")
        writing = {one.worker.id for one in self._remote.values()}
        linked = self._offloading.idle().items() if waiting else ()
        idle = {name: worker for name, worker in linked if name not in writing}

        def chosen(active: Active, askings: Askings) -> str | None:
            """The worker that is asked for an answer to this prompt; None where none of those may be."""
            assignments, merit = active.generation.assignments, self._offloading.merit
            if not assignments.allowed:
                return None
            exclude = assignments.excluded | askings.lost_by
            return choose(idle.values(), {}, active.request.groups, merit, exclude=exclude)

        while idle and (wanted := self._claim(waiting, lambda *one: chosen(*one) is not None)) is not None:
            worker = chosen(wanted.active, wanted.askings)
            assert worker is not None
            self._begin_remote(wanted, idle.pop(worker), now)

    def _begin_remote(self, wanted: _Wanted, worker: LinkedWorker, now: float) -> None:
        request = wanted.active.request
        answer = RemoteAnswer(next(self._numbers), request.tokens, wanted.limit, wanted.stops)
        due = now + patience(worker.rtt_high_s, worker.step_s, len(request.tokens))
        one = self._remote[answer.number] = _Remote(wanted, worker, answer, due)
        self._note(one, PromptSent(worker.id, worker.label))
        for body in answer.open(wanted.sampling, scope_for(worker.id, request.cache_scope)):
            self._send(one, body)

    def frame_arrived(self, event: FrameArrived) -> bool:
        """Merges a frame; whether it belongs to an answer that its worker writes."""
        one = self._remote.get(event.frame.request)
        if one is None or one.worker.id != event.worker:
            return False
        with Contained() as caught:
            merged = one.answer.merge(event.frame, event.worker)
        if caught.error is not None:
            self._note(one, WaitingFrame(event.worker, one.worker.label, "rejected"))
            self._punish(one, caught.error)
            return True
        kind = "used" if merged.fresh else "stale"
        one.frames += bool(merged.fresh)
        self._note(one, WaitingFrame(event.worker, one.worker.label, kind))
        self._offloading.note(FrameTaken(kind, event.worker, merged))
        return True

    def declined(self, event: Declined) -> None:
        """A worker writes no answer to this prompt, nor does it draft for it."""
        one = self._remote.get(event.request)
        if one is not None and one.worker.id == event.worker:
            one.wanted.active.generation.assignments.excluded.add(event.worker)
            self._lose(one, "declined")

    def release(self, worker: str, why: str) -> None:
        """A worker is gone, or a running request needs it; what it has written stays."""
        for one in list(self._remote.values()):
            if one.worker.id == worker:
                self._lose(one, why)

    def _lose(self, one: _Remote, why: str) -> None:
        """What it has written stays, and the answer is asked for again."""
        one.wanted.askings.lose(one.wanted.number, one.worker.id)
        self._end_remote(one, why)

    def _end_remote(self, one: _Remote, why: str) -> None:
        self._close(one, why)
        _add(one.wanted.active, one.answer.tokens)

    def _close(self, one: _Remote, why: str) -> None:
        del self._remote[one.answer.number]
        self._send(one, one.answer.close(why))
        worker = one.worker
        self._note(one, PromptWithdrawn(worker.id, worker.label, why, one.frames))

    def _punish(self, one: _Remote, error: Exception) -> None:
        """It broke the protocol, or its data the gateway's own code: its answer is dropped and its link ends."""
        if not isinstance(error, RemoteProtocolError):
            log.error("an answer of worker %s led to a fault: %s", one.worker.id, describe_fault(error))
            error = RemoteProtocolError("fault", "its answer led to a fault of this gateway")
        one.wanted.active.generation.assignments.excluded.add(one.worker.id)
        one.wanted.askings.lose(one.wanted.number, one.worker.id)
        self._close(one, "moved")
        self._offloading.punish(one.worker.id, error, one.answer.number)

    def _note(self, one: _Remote, note: Note) -> None:
        one.wanted.active.generation.note(note, self._local.clock())

    def _send(self, one: _Remote, body: ToWorker) -> None:
        self._offloading.send(Send(one.worker.id, body))

    # --- the local draft -----------------------------------------------------------------------------------------

    def turn(self, queue: Waiting[Active]) -> float:
        """One pass for a request that waits, where one is due; when the next may be due."""
        model, clock = self._local.model, self._local.clock
        if model is None or not self._settings.queued_answers or not (self._own or len(queue)):
            return NEVER
        if clock() < self._next_at:
            return self._next_at

        timer = DraftTimer(model, clock)
        own = self._own or self._begin_own(model, queue.all())
        if own is None:
            return NEVER
        with Contained() as caught:
            self._write(model, own)
        cost = timer.cost()
        self._next_at = cost.ended + REST * cost.seconds
        self._local.count(cost.passes, cost.seconds)
        active = own.wanted.active
        active.generation.note(Spent("draft", cost.seconds, cost.passes), cost.ended)
        if caught.error is not None:  # no memory for it, mostly: it is not tried again
            log.info("request %d waits without a draft: %s", active.id, describe_fault(caught.error))
            own.wanted.askings.stop()
            self._end_own(own)
        return self._next_at

    def _begin_own(self, model: DraftModel, waiting: Sequence[Active]) -> _Own | None:
        wanted = self._claim(waiting, lambda active, askings: True)
        if wanted is None:
            return None
        request, number = wanted.active.request, wanted.active.id
        with Contained() as caught:
            model.open(-number, request.tokens, request.cache_scope)
        if caught.error is not None:
            wanted.askings.stop()
            return None
        self._own = _Own(wanted, Ranker(wanted.sampling, request.tokens, spread=Spread(fixed=1.0)), [])
        return self._own

    def _write(self, model: DraftModel, own: _Own) -> None:
        """One batch of the prompt, or one token."""
        wanted, key = own.wanted, -own.wanted.active.id
        if model.backlog(key) > 1:
            model.catch_up(key, catch_up_batch(self._local.verify_s, model.token_s))
            return
        ((proposal,),) = model.draft([Asked(key, [()], 1, own.ranker)])
        token = proposal.tokens[0]
        own.tokens.append(token)
        own.ranker.committed([token])
        if token in wanted.stops or len(own.tokens) >= wanted.limit:
            self._end_own(own)
        else:
            model.commit(key, [token])

    def _end_own(self, own: _Own) -> None:
        """The answer is as long as it gets."""
        self._own = None
        assert self._local.model is not None
        with Contained():
            self._local.model.close(-own.wanted.active.id)
        _add(own.wanted.active, own.tokens)


def _source_of(active: Active) -> Answers | None:
    """The request's source `answers`, where it has one."""
    sources = active.generation.sources
    return None if sources is None else sources.answers


def _add(active: Active, answer: Sequence[int]) -> None:
    if (source := _source_of(active)) is not None:
        source.add(answer)


def _sampling(asked: Sampling, number: int) -> Sampling:
    """Of the answer of this number: the first one as the request is sampled, as far as its seed may be used."""
    if number == 0 and (asked.seed is not None or asked.temperature == 0):
        return asked
    return replace(asked, temperature=max(asked.temperature, OTHER_TEMPERATURE), seed=number)
