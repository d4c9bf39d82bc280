"""Answers that the local draft writes to a prompt while its request waits (QueueSpec), and earlier completions.

They are candidates only, for source `answers` of the request. Lives on the engine's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from cloud_gateway.core.requests.local_costs import catch_up_batch
from cloud_gateway.core.requests.steps import LocalWork
from cloud_gateway.core.sources.answers import Answers
from cloud_gateway.core.sources.archive import Archive
from cloud_gateway.core.sources.settings import SourceSettings
from cloud_gateway.engine.active import Active
from cloud_gateway.engine.caught import Caught, describe_fault
from cloud_gateway.engine.local_draft import LocalDrafting
from cloud_gateway.models.drafts import DraftModel
from edgespec.core.drafting.ranking import Ranker, Spread
from edgespec.core.protocol.messages import Sampling

log = logging.getLogger("cloud_gateway.engine.queue_drafts")

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

    active: Active
    ranker: Ranker
    tokens: list[int] = field(default_factory=list)


class QueueDrafts:
    """Writes one answer at a time, and gives each request what there is when it gets its slot."""

    def __init__(self, local: LocalDrafting, settings: SourceSettings, eos: Iterable[int]) -> None:
        self._local, self._settings, self._eos = local, settings, frozenset(eos)
        self._archive = Archive(settings.kept_tokens)
        self._written: dict[int, int] = {}
        """Request that waits -> answers."""
        self._writing: _Writing | None = None
        self._next_at = 0.0
        self.answers = 0
        """Written so far, those cut short by a slot included."""

    def give(self, active: Active) -> None:
        """The request gets its slot: an unfinished answer is as good as it goes, and earlier ones are looked up."""
        if self._writing is not None and self._writing.active is active:
            self._end()
        self._written.pop(active.id, None)
        if (source := _source(active)) is not None:
            for completion in self._archive.find(active.request.cache_scope, active.request.tokens):
                source.add(completion)

    def ended(self, active: Active) -> None:
        """The request is over; what it emitted may serve the next one of the same conversation."""
        if self._writing is not None and self._writing.active is active:
            self._end()
        self._written.pop(active.id, None)
        if _source(active) is not None:
            request = active.request
            completion = active.generation.tree.prefix.tokens[len(request.tokens) :]
            self._archive.keep(request.cache_scope, request.tokens, completion)

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
        with Caught() as caught:
            self._write(model, writing)
        now = clock()
        made, self._next_at = model.passes - passes, now + REST * (now - began)
        self._local.stats.draft_s += now - began
        self._local.stats.local_passes += made
        writing.active.generation.handle(LocalWork(made, now - began), now)
        if caught.error is not None:  # no memory for it, mostly: it is not tried again
            log.info("request %d waits without a draft: %s", writing.active.id, describe_fault(caught.error))
            self._written[writing.active.id] = self._settings.queued_answers
            self._end()
        return self._next_at

    def _begin(self, model: DraftModel, waiting: Sequence[Active]) -> _Writing | None:
        """The next answer: every request gets its first one before any gets a second one."""
        wanted = [(self._written.get(active.id, 0), number) for number, active in enumerate(waiting) if _source(active)]
        count, number = min(wanted, default=(self._settings.queued_answers, 0))
        if count >= self._settings.queued_answers:
            return None
        active = waiting[number]
        with Caught() as caught:
            model.open(_Key(active.id), active.request.tokens, active.request.cache_scope)
        if caught.error is not None:
            self._written[active.id] = self._settings.queued_answers
            return None
        self._written[active.id] = count + 1
        sampling, request = active.generation.worker_sampling, active.request
        self._writing = _Writing(active, Ranker(_sampling(sampling, count), request.tokens, spread=Spread(fixed=1.0)))
        return self._writing

    def _write(self, model: DraftModel, writing: _Writing) -> None:
        """One batch of the prompt, or one token."""
        key, active = _Key(writing.active.id), writing.active
        if model.backlog(key) > 1:
            model.catch_up(key, catch_up_batch(self._local.verify_s, model.token_s))
            return
        (proposal,) = model.draft(key, [()], 1, writing.ranker)
        token = proposal.tokens[0]
        writing.tokens.append(token)
        writing.ranker.committed([token])
        limit = min(self._settings.queued_tokens, active.request.max_tokens)
        if (token in self._eos and not active.request.ignore_eos) or len(writing.tokens) >= limit:
            self._end()
        else:
            model.commit(key, [token])

    def _end(self) -> None:
        """The answer is as long as it gets."""
        writing, self._writing = self._writing, None
        assert writing is not None and self._local.model is not None
        self.answers += 1
        with Caught():
            self._local.model.close(_Key(writing.active.id))
        if (source := _source(writing.active)) is not None:
            source.add(writing.tokens)


@dataclass(frozen=True, slots=True)
class _Key:
    """Names a request that waits in the draft model, where a running one is named by its number."""

    request: int


def _source(active: Active) -> Answers | None:
    sources = active.generation.sources
    return None if sources is None else sources.answers


def _sampling(asked: Sampling, number: int) -> Sampling:
    """Of the answer of this number: the first one as the request is sampled, as far as its seed may be used."""
    if number == 0 and (asked.seed is not None or asked.temperature == 0):
        return asked
    return replace(asked, temperature=max(asked.temperature, OTHER_TEMPERATURE), seed=number)
