"""Which workers are sent a request's prompt, as the audit log has it."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.engine.exchange import PolicyStart
from cloud_gateway.part import PromptBook


class RequestAudit(events.Listener):
    """Writes down which workers are sent one request's prompt."""

    def __init__(self, request: GenerationRequest, book: PromptBook) -> None:
        self._request = request
        self._book = book

    def handled(self, event: events.Event, effects: Sequence[events.Effect], now: float) -> None:
        # An assignment that came too late has no effects: nothing is sent to that worker.
        if isinstance(event, events.WorkerChanged) and event.assigns and effects:
            self._book.assigned(self._request, event.worker, event.name or event.worker)
        for effect in effects:
            if isinstance(effect, events.Released):
                given = effect.given
                self._book.released(self._request, given.worker, given.name, effect.reason, given.frames)

    def noted(self, note: events.Note, now: float) -> None:
        match note:
            case events.PromptSent(worker, name):
                self._book.assigned(self._request, worker, name)
            case events.PromptWithdrawn(worker, name, reason, frames):
                self._book.released(self._request, worker, name, reason, frames)


class Audited:
    """Writes down the requests of the engine (`engine.exchange.Recording`)."""

    def __init__(self, book: PromptBook) -> None:
        self._book = book

    def listener(self, generation: Generation, start: PolicyStart) -> RequestAudit:
        """A request has just come."""
        return RequestAudit(generation.request, self._book)
