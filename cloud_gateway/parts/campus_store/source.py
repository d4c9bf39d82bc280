"""Source `store`, which suggests what followed the end of this text in stored ones; and the listener that stores."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.sources.interface import DraftSource, SourceStart, Suggestion
from cloud_gateway.core.sources.lookup import likeliest
from cloud_gateway.engine.exchange import PolicyStart
from cloud_gateway.parts.campus_store.index import NO_MATCH, REACH, Match, backwards
from cloud_gateway.parts.campus_store.store import Completed, Scope, Store, tag
from edgespec.core.errors import KeyStoreError

NAME = "store"
"""The source in `policy.sources` and `usage.edgespec.sources`."""
EMPTY = "nothing is stored for this API key yet"
UNKNOWN = "no stored text has the end of this one"


class StoreSource(DraftSource):
    """One request's source. A place that was right is followed; the store is searched again after a divergence."""

    name = NAME

    def __init__(self, start: SourceStart, store: Store) -> None:
        self.why: str | None = EMPTY
        self._store = store
        self._cache_scope = start.scope
        self._unread = len(start.prompt)
        """Tokens of the prompt that are still to come."""
        self._recent: list[int] = []
        """The last REACH tokens; before the completion, the number that stands for the prompt."""
        if not store.limits.prompts:
            self._recent.append(tag(start.prompt))
        self._match = NO_MATCH
        self._length = 0
        """Tokens of the match, by which it is trusted."""

    @property
    def _scope(self) -> Scope | None:
        return self._store.scope(self._cache_scope)

    def committed(self, tokens: Sequence[int]) -> None:
        """Follows the text, and learns how often a stored text went on as the completion does."""
        prompt = tokens[: self._unread]
        completion = tokens[self._unread :]
        self._unread -= len(prompt)
        if self._store.limits.prompts:
            self._recent += prompt[-REACH:]
        self._recent = [*self._recent, *completion][-REACH:]
        scope = self._scope
        if scope is None:
            return

        for token in completion:
            self._follow(scope, token)
        if not self._match.ends and not self._unread:
            self._find(scope)

    def propose(self, room: int) -> Sequence[Suggestion]:
        """The likeliest continuations of the longest match, by their survival."""
        scope = self._scope
        if scope is None:
            self.why = EMPTY
            return ()
        if not self._length:
            self.why = UNKNOWN
            return ()
        self.why = scope.rates.refusal(self._length)
        if self.why is not None:
            return ()

        found = likeliest(scope.rates, self._length, range(len(self._match.ends)), self._following, room)
        if not found:
            self.why = f"no continuation of a match of {self._length} tokens is likely enough"
        return found

    def _follow(self, scope: Scope, token: int) -> None:
        """The completion goes on with this token."""
        if not self._match.ends:
            return

        ends = [(segment, place - 1) for segment, place in self._match.ends if segment.following(place, 0) == token]
        scope.rates.learn(self._length, right=bool(ends))
        length = self._length + 1 if ends else 0
        self._match = Match(length, ends)
        self._length = length

    def _find(self, scope: Scope) -> None:
        self._match = scope.texts.find(backwards(self._recent))
        self._length = self._match.length
        # The same prompt was completed alike so far.
        from_prompt = not self._store.limits.prompts and self._length == len(self._recent)
        if from_prompt:
            self._length = REACH

    def _following(self, index: int, distance: int) -> int | None:
        segment, place = self._match.ends[index]
        return segment.following(place, distance)


class StoringListener(events.Listener):
    """Stores one request's completion when it has ended."""

    def __init__(self, generation: Generation, store: Store) -> None:
        self._generation = generation
        self._store = store

    def handled(self, event: events.Event, effects: Sequence[events.Effect], now: float) -> None:
        for effect in effects:
            if isinstance(effect, events.Finished) and effect.finish != "error":
                self._keep()

    def _keep(self) -> None:
        request = self._generation.request
        completion = self._generation.tree.prefix.tokens[len(request.tokens) :]
        if completion:
            self._store.keep(Completed(request.key, request.tokens, completion))


class Storing:
    """Stores the completions of the engine (`engine.exchange.Recording`)."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def listener(self, generation: Generation, start: PolicyStart) -> StoringListener | None:
        """A request has just come. One without a scope is not stored."""
        if not generation.request.cache_scope:
            return None

        try:
            self._store.announce(generation.request)
        except KeyStoreError:
            return None  # the API refuses requests for the same reason
        return StoringListener(generation, self._store)
