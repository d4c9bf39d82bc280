"""Collects the committed tokens of those requests whose API key consented, while the worker drafts for them.

It gets the messages of the gateway before the drafting thread has checked them, so it checks what it relies on itself,
and drops a request if something does not fit; the drafting thread then ends the link. Everything is bounded: a gateway
may open as many requests as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from edgespec.core.protocol.messages import Close, Commit, Open, ToWorker

MAX_TOKENS = 4096
"""Of a prompt and its completion together; longer ones are cut off there."""
MIN_WRITTEN = 8
"""Tokens of a completion from which it is kept."""
MAX_OPEN = 64
"""Requests that are collected at once, and of which the key is known before they are opened: many more than a worker
drafts for."""


@dataclass(frozen=True, slots=True)
class Collected:
    """The tokens of one request, from a key that consented."""

    key: str
    scope: str
    tokens: Sequence[int]
    """Prompt and completion."""
    prompt: int
    """How many of them were there when the request was opened; all others are the target's."""


@dataclass(slots=True)
class _Request:
    """One that is open."""

    key: str
    epoch: int
    prompt_len: int
    tokens: list[int]


@dataclass(slots=True)
class Collector:
    """For one link at a time. On the event loop."""

    keep: Callable[[Collected], None]
    """Is given each text when its request ends."""
    _scopes: Mapping[str, str] = field(default_factory=dict)
    """Of the keys that consented."""
    _announced: dict[int, str] = field(default_factory=dict)
    """The keys of requests that will be opened."""
    _open: dict[int, _Request] = field(default_factory=dict)

    def allow(self, scopes: Mapping[str, str]) -> None:
        """These keys consented, and no others: what is collected of others is dropped."""
        self._scopes = scopes
        self.drop(key for key in self._keys() if key not in scopes)

    def drop(self, keys: Iterable[str]) -> None:
        """Drops what is collected of these keys."""
        dropped = frozenset(keys)
        for number in [number for number, request in self._open.items() if request.key in dropped]:
            del self._open[number]
        for number in [number for number, key in self._announced.items() if key in dropped]:
            del self._announced[number]

    def forget(self, who: str) -> None:
        """Drops what is collected of a key, or of the keys of a cache group; of all if `who` is empty."""
        named = (who, f"group {who}")
        self.drop(key for key in self._keys() if not who or key == who or self._scopes[key] in named)

    def announce(self, number: int, key: str) -> None:
        """The next `Open` of a request is of this key."""
        if key not in self._scopes:
            return

        self._announced.pop(number, None)
        if len(self._announced) >= MAX_OPEN:
            del self._announced[next(iter(self._announced))]
        self._announced[number] = key

    def take(self, message: ToWorker | None) -> None:
        """A message about a request; None: the link has ended, and with it all requests."""
        match message:
            case None:
                for number in list(self._open):
                    self._end(number)
                self._announced.clear()
            case Open():
                self._begin(message)
            case Commit():
                self._grow(message)
            case Close():
                request = self._open.get(message.request)
                if request is not None and request.epoch == message.epoch:
                    self._end(message.request)

    def _keys(self) -> list[str]:
        return [*self._announced.values(), *(request.key for request in self._open.values())]

    def _begin(self, message: Open) -> None:
        """An `Open` of a request that is open replaces it: the worker's part of the text until then is kept."""
        if message.request in self._open:
            self._end(message.request)
        key = self._announced.pop(message.request, None)
        if key is None or message.prompt_len > MAX_TOKENS or len(message.tokens) > message.prompt_len:
            return

        if len(self._open) >= MAX_OPEN:
            del self._open[next(iter(self._open))]
        self._open[message.request] = _Request(key, message.epoch, message.prompt_len, list(message.tokens))

    def _grow(self, message: Commit) -> None:
        request = self._open.get(message.request)
        if request is None or request.epoch != message.epoch:
            return

        # Tokens behind the prompt that no pass chose are draft tokens, which the gateway commits for an answer that
        # it writes while the request waits.
        drafted = message.prefix_len >= request.prompt_len and not message.pass_us
        if message.prefix_len != len(request.tokens) or drafted:
            del self._open[message.request]
            return

        request.tokens += message.tokens
        if len(request.tokens) >= MAX_TOKENS:
            self._end(message.request)

    def _end(self, number: int) -> None:
        """The text is whole as far as this worker drafted for it."""
        request = self._open.pop(number)
        tokens = request.tokens[:MAX_TOKENS]
        if len(tokens) >= request.prompt_len + MIN_WRITTEN:
            self.keep(
                Collected(
                    request.key,
                    self._scopes[request.key],
                    tokens,
                    request.prompt_len,
                )
            )
