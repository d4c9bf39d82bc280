"""Listens to requests that use the source `answers`, and puts their completions into the archive."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_gateway.core.requests.events import Effect, Event, Listener, Status
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.engine.exchange import PolicyStart
from cloud_gateway.parts.queued_answers.archive import Archive
from cloud_gateway.parts.queued_answers.source import answers_of


class Keeping:
    """The `Recording` that puts completions into an archive, of requests that use the source `answers`."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def listener(self, generation: Generation, start: PolicyStart) -> Listener | None:
        if answers_of(generation) is None:
            return None
        return CompletionKeeper(self._archive, generation)


class CompletionKeeper(Listener):
    """Keeps one completion, whatever ends it."""

    def __init__(self, archive: Archive, generation: Generation) -> None:
        self._archive = archive
        self._generation = generation

    def handled(self, event: Event, effects: Sequence[Effect], now: float) -> None:
        generation = self._generation
        if generation.status is Status.FINISHED:
            request = generation.request
            completion = generation.tree.prefix.tokens[len(request.tokens) :]
            self._archive.keep(request.cache_scope, request.tokens, completion)
