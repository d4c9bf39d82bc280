"""The engine's work on requests that wait: idle workers and the local draft write answers to their prompts."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_gateway.core.requests.events import FrameArrived, FrameTaken
from cloud_gateway.engine.exchange import Active, Declined
from cloud_gateway.engine.queue_work import NEVER, Idle, Lent, QueueWork
from cloud_gateway.parts.queued_answers.jobs import Jobs
from cloud_gateway.parts.queued_answers.local import AnsweringDraft
from cloud_gateway.parts.queued_answers.workers import AnsweringWorkers


class AnswerWork(QueueWork):
    """Gives each request's source the answers that there are when it gets its slot."""

    def __init__(self, answers: int, lent: Lent) -> None:
        """`answers`: of each request, 1 or more."""
        self._jobs = Jobs(answers, lent.eos)
        self._workers = AnsweringWorkers(self._jobs, lent)
        self._draft: AnsweringDraft | None = None
        if lent.draft is not None:
            self._draft = AnsweringDraft(lent.draft, self._jobs, lent)

    def lead(self, waiting: Sequence[Active], idle: Idle) -> None:
        self._workers.lead(waiting, idle)

    def compute(self, waiting: Sequence[Active]) -> float:
        if self._draft is None:
            return NEVER
        return self._draft.compute(waiting)

    def left(self, active: Active, why: str) -> None:
        self._workers.left(active, why)
        if self._draft is not None:
            self._draft.left(active)
        self._jobs.forget(active)

    def frame_arrived(self, event: FrameArrived) -> FrameTaken | None:
        return self._workers.frame_arrived(event)

    def declined(self, event: Declined) -> None:
        self._workers.declined(event)

    def worker_needed(self, worker: str, why: str) -> None:
        self._workers.release(worker, why)
