"""Answers that the local draft writes to prompts that wait: one at a time, with rests between its passes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from cloud_gateway.core.policies.policy import catch_up_batch
from cloud_gateway.core.requests.events import Spent
from cloud_gateway.engine.exchange import Active
from cloud_gateway.engine.local_draft import DraftTimer
from cloud_gateway.engine.queue_work import NEVER, Lent
from cloud_gateway.models.drafts import DraftModel
from cloud_gateway.parts.queued_answers.jobs import AnswerJob, Jobs
from edgespec.core.drafting.ranking import Asked, Ranker, Spread
from edgespec.shared.contained import Contained, describe_fault

log = logging.getLogger("cloud_gateway.parts.queued_answers.local")

REST = 3.0
"""Time between two passes, in passes: running requests keep three quarters of theirs."""


@dataclass(frozen=True, slots=True)
class LocalWriting:
    """What the local draft writes, as far as it is written. The draft model has it under the request's number negated,
    since a running request has that number."""

    job: AnswerJob
    ranker: Ranker
    tokens: list[int]

    @property
    def key(self) -> int:
        """Its number in the draft model."""
        return -self.job.active.id


class AnsweringDraft:
    """Writes with one local draft."""

    def __init__(self, draft: DraftModel, jobs: Jobs, lent: Lent) -> None:
        self._draft = draft
        self._jobs = jobs
        self._lent = lent
        self._writing: LocalWriting | None = None
        self._next_at = 0.0
        """When the next pass may begin, in seconds of the engine's clock."""

    def compute(self, waiting: Sequence[Active]) -> float:
        """Runs one pass for a request that waits, if one is due; returns when the next may be due."""
        if self._writing is None and not waiting:
            return NEVER
        if self._lent.clock() < self._next_at:
            return self._next_at

        timer = DraftTimer(self._draft, self._lent.clock)
        writing = self._writing or self._begin(waiting)
        if writing is None:
            return NEVER

        with Contained() as caught:
            self._write(writing)
        cost = timer.cost()

        self._next_at = cost.ended + REST * cost.seconds
        self._lent.stats.drafted(cost.passes, cost.seconds)
        active = writing.job.active
        active.generation.note(Spent("draft", cost.seconds, cost.passes), cost.ended)

        # There is no memory for it, mostly: it is not tried again.
        if caught.error is not None:
            log.info("request %d waits without a draft: %s", active.id, describe_fault(caught.error))
            writing.job.askings.stop()
            self._end(writing)
        return self._next_at

    def left(self, active: Active) -> None:
        """The request waits no more: its answer is used as it is."""
        if self._writing is not None and self._writing.job.active is active:
            self._end(self._writing)

    def _begin(self, waiting: Sequence[Active]) -> LocalWriting | None:
        job = self._jobs.claim(waiting, lambda active, askings: True)
        if job is None:
            return None

        request = job.active.request
        writing = LocalWriting(job, Ranker(job.sampling, request.tokens, spread=Spread(fixed=1.0)), [])
        with Contained() as caught:
            self._draft.open(writing.key, request.tokens, request.cache_scope)
        if caught.error is not None:
            job.askings.stop()
            return None

        self._writing = writing
        return writing

    def _write(self, writing: LocalWriting) -> None:
        """Reads one batch of the prompt, or writes one token."""
        draft = self._draft
        job = writing.job
        if draft.backlog(writing.key) > 1:
            draft.catch_up(writing.key, catch_up_batch(self._lent.verify_s, draft.token_s))
            return

        ((proposal,),) = draft.draft([Asked(writing.key, [()], 1, writing.ranker)])
        token = proposal.tokens[0]
        writing.tokens.append(token)
        writing.ranker.committed([token])
        if token in job.stops or len(writing.tokens) >= job.limit:
            self._end(writing)
        else:
            draft.commit(writing.key, [token])

    def _end(self, writing: LocalWriting) -> None:
        """The answer is as long as it gets."""
        self._writing = None
        with Contained():
            self._draft.close(writing.key)
        writing.job.done(writing.tokens)
