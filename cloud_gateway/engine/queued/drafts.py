"""Answers that are written to a prompt while its request waits (QueueSpec), and earlier completions.

They are candidates only, for source `answers` of the request. Idle workers write (workers.py), and here the local
draft does. Lives on the engine's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from cloud_gateway.core.requests.askings import Askings
from cloud_gateway.core.requests.events import Spent
from cloud_gateway.core.requests.local_costs import catch_up_batch
from cloud_gateway.core.sources.answers import Archive
from cloud_gateway.core.sources.settings import KEPT_TOKENS, QUEUED_TOKENS, SourceSettings
from cloud_gateway.engine.exchange import Active
from cloud_gateway.engine.local_draft import LocalDrafting
from cloud_gateway.engine.queued.workers import May, QueueWorkers, Wanted, source_of
from cloud_gateway.models.drafts import DraftModel
from edgespec.core.drafting.ranking import Asked, Ranker, Spread
from edgespec.core.protocol.messages import Sampling
from edgespec.shared.contained import Contained, describe_fault

log = logging.getLogger("cloud_gateway.engine.queued")

REST = 3.0
"""Time between two passes, in passes: running requests keep three quarters of theirs."""
NEVER = float("inf")
OTHER_TEMPERATURE = 0.7
"""Of the second answer and further ones, where the request's is lower: they have to differ from the first."""


class Queue(Protocol):
    """The requests that wait."""

    def __len__(self) -> int: ...

    def all(self) -> list[Active]:
        """In the order in which they wait."""


@dataclass(slots=True)
class _Writing:
    """One answer as far as it is written."""

    wanted: Wanted
    ranker: Ranker
    tokens: list[int] = field(default_factory=list)


class QueueDrafts:
    """Gives each request what there is when it gets its slot. The local draft writes one answer at a time."""

    def __init__(
        self, local: LocalDrafting, settings: SourceSettings, eos: Iterable[int], workers: QueueWorkers | None = None
    ) -> None:
        self._local, self._settings, self._eos, self._workers = local, settings, frozenset(eos), workers
        self._archive = Archive(KEPT_TOKENS)
        self._askings: dict[int, Askings] = {}
        """By the requests that wait."""
        self._writing: _Writing | None = None
        self._next_at = 0.0
        self.answers = 0
        """Written by the local draft so far, those cut short by a slot included."""

    def give(self, active: Active) -> None:
        """The request gets its slot: an unfinished answer is as good as it goes, and earlier ones are looked up."""
        began = self._local.clock()
        self._stop(active, "admitted")
        if not active.ran and (source := source_of(active)) is not None:
            for completion in self._archive.find(active.request.cache_scope, active.request.tokens):
                source.add(completion)
            now = self._local.clock()
            active.generation.handle(Spent("source", now - began, name=source.name), now)

    def ended(self, active: Active) -> None:
        """The request is over; what it emitted may serve the next one of the same conversation."""
        self._stop(active, "cancelled")
        if source_of(active) is not None:
            request = active.request
            completion = active.generation.tree.prefix.tokens[len(request.tokens) :]
            self.keep(request.cache_scope, request.tokens, completion)

    def keep(self, scope: bytes, prompt: Sequence[int], completion: Sequence[int]) -> None:
        """Requests of this scope and conversation are given the completion as another answer."""
        self._archive.keep(scope, prompt, completion)

    def ask(self, queue: Queue) -> None:
        """Lets workers write for requests that wait, before the local draft does."""
        if self._workers is not None and self._settings.queued_answers:
            self._workers.turn(queue.all(), self._claim, self._local.clock())

    def turn(self, queue: Queue) -> float:
        """One pass for a request that waits, where one is due; when the next may be due."""
        model, clock = self._local.model, self._local.clock
        if model is None or not self._settings.queued_answers or not (self._writing or len(queue)):
            return NEVER
        began = clock()
        if began < self._next_at:
            return self._next_at
        writing = self._writing or self._begin(model, queue.all())
        if writing is None:
            return NEVER
        passes = model.passes
        with Contained() as caught:
            self._write(model, writing)
        now = clock()
        made, self._next_at = model.passes - passes, now + REST * (now - began)
        self._local.stats.draft_s += now - began
        self._local.stats.local_passes += made
        active = writing.wanted.active
        active.generation.handle(Spent("draft", now - began, made), now)
        if caught.error is not None:  # no memory for it, mostly: it is not tried again
            log.info("request %d waits without a draft: %s", active.id, describe_fault(caught.error))
            writing.wanted.askings.stop()
            self._end()
        return self._next_at

    def _stop(self, active: Active, why: str) -> None:
        """The request waits no more."""
        if self._workers is not None:
            self._workers.stop(active, why)
        if self._writing is not None and self._writing.wanted.active is active:
            self._end()
        self._askings.pop(active.id, None)

    def _claim(self, waiting: Sequence[Active], may: May) -> Wanted | None:
        """The next answer: every request gets its first one before any gets a second one."""
        known = (
            (self._askings.setdefault(one.id, Askings()), one)
            for one in waiting
            if not one.ran and source_of(one) is not None
        )
        most = self._settings.queued_answers
        found = [pair for pair in known if pair[0].next < most and may(pair[1], pair[0].lost_by)]
        if not found:
            return None
        askings, active = min(found, key=lambda pair: pair[0].next)
        number = askings.take()
        limit = min(QUEUED_TOKENS, active.request.max_tokens)
        stops = frozenset[int]() if active.request.ignore_eos else self._eos
        return Wanted(active, askings, number, _sampling(active.generation.assignments.sampling, number), limit, stops)

    def _begin(self, model: DraftModel, waiting: Sequence[Active]) -> _Writing | None:
        wanted = self._claim(waiting, lambda active, lost_by: True)
        if wanted is None:
            return None
        request, number = wanted.active.request, wanted.active.id
        with Contained() as caught:
            model.open(_Key(number), request.tokens, request.cache_scope)
        if caught.error is not None:
            wanted.askings.stop()
            return None
        self._writing = _Writing(wanted, Ranker(wanted.sampling, request.tokens, spread=Spread(fixed=1.0)))
        return self._writing

    def _write(self, model: DraftModel, writing: _Writing) -> None:
        """One batch of the prompt, or one token."""
        wanted = writing.wanted
        key = _Key(wanted.active.id)
        if model.backlog(key) > 1:
            model.catch_up(key, catch_up_batch(self._local.verify_s, model.token_s))
            return
        ((proposal,),) = model.draft([Asked(key, [()], 1, writing.ranker)])
        token = proposal.tokens[0]
        writing.tokens.append(token)
        writing.ranker.committed([token])
        if token in wanted.stops or len(writing.tokens) >= wanted.limit:
            self._end()
        else:
            model.commit(key, [token])

    def _end(self) -> None:
        """The answer is as long as it gets."""
        writing, self._writing = self._writing, None
        assert writing is not None and self._local.model is not None
        self.answers += 1
        with Contained():
            self._local.model.close(_Key(writing.wanted.active.id))
        if (source := source_of(writing.wanted.active)) is not None:
            source.add(writing.tokens)


@dataclass(frozen=True, slots=True)
class _Key:
    """Names a request that waits in the draft model, where a running one is named by its number."""

    request: int


def _sampling(asked: Sampling, number: int) -> Sampling:
    """Of the answer of this number: the first one as the request is sampled, as far as its seed may be used."""
    if number == 0 and (asked.seed is not None or asked.temperature == 0):
        return asked
    return replace(asked, temperature=max(asked.temperature, OTHER_TEMPERATURE), seed=number)
