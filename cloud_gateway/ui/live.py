"""The events of each API key's completions, for as long as a page shows them."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import msgspec

from cloud_gateway.api.answer import Detokeniser
from cloud_gateway.auth import Key
from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests.events import Listener
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.engine.exchange import Recording
from cloud_gateway.ui.view import View

KEPT_BYTES = 2 * 2**20
"""Of one key's events, of which a pass takes about 1 KB: some minutes, for a page that connects again."""
KEPT_S = 60.0
"""After the last page of a key was closed."""
MAX_PAGES = 8
"""Open pages of one key."""
CLOCK = time.perf_counter
"""The engine's."""


class Texts(Protocol):
    """Tokens as text (cloud_gateway/models/text.py)."""

    def spell(self, token: int) -> bytes: ...
    def detokeniser(self) -> Detokeniser: ...


class Workers(Protocol):
    """All paired workers, as `cloud-gateway workers list` shows them."""

    def __call__(self) -> Sequence[dict[str, object]]: ...


class Feed:
    """One key's events. Lives on the event loop, besides `post`."""

    def __init__(self, key: Key, loop: asyncio.AbstractEventLoop) -> None:
        self.key, self._loop = key, loop
        self.pages = 0
        self.left_at = CLOCK()
        """When the last page was closed."""
        self.next = 1
        self._kept, self._bytes = deque[bytes](), 0
        self._news = asyncio.Event()
        self._workers: dict[str, str] = {}

    def post(self, event: dict[str, Any]) -> None:
        """One more event; called on any thread."""
        data = msgspec.json.encode(event)
        self._loop.call_soon_threadsafe(self._add, data)

    def name(self, worker: str, name: str) -> str:
        """The worker's own name for an operator's key; a number for others, to whom it shows whose machine helps."""
        if self.key.operator:
            return name or worker
        return self._workers.setdefault(worker, f"worker {len(self._workers) + 1}")

    def _add(self, data: bytes) -> None:
        self._kept.append(data)
        self._bytes += len(data)
        self.next += 1
        while self._bytes > KEPT_BYTES:
            self._bytes -= len(self._kept.popleft())
        news, self._news = self._news, asyncio.Event()
        news.set()

    @property
    def first(self) -> int:
        """Number of the oldest event that is kept."""
        return self.next - len(self._kept)

    async def after(self, number: int, timeout_s: float) -> list[tuple[int, bytes]]:
        """The events from this number on, with their numbers; none where none comes in time."""
        if number >= self.next:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            except TimeoutError:
                return []
        first = self.first
        return [
            (at, data)
            for at, data in enumerate(itertools.islice(self._kept, max(0, number - first), None), max(number, first))
        ]


class Live:
    """Listens to the requests of keys that a page watches (`engine.exchange.Recording`)."""

    def __init__(self, texts: Texts, workers: Workers, recorder: Recording | None) -> None:
        self.workers, self._texts, self._recorder = workers, texts, recorder
        self.feeds: dict[str, Feed] = {}
        self.epoch = secrets.token_hex(4)
        """Before the numbers of events: those of another process are of no use here."""

        @lru_cache(maxsize=1 << 14)
        def one(token: int) -> str:
            return texts.spell(token).decode("utf-8", "replace")

        self._one = one

    def listeners(self, generation: Generation, settings: PolicySettings, curve: StepCurve) -> list[Listener]:
        """A request has just come. Without a page of its key nothing is made of it."""
        found = [] if self._recorder is None else self._recorder.listeners(generation, settings, curve)
        feed = self.feeds.get(generation.request.key)
        if feed is not None and (feed.pages or CLOCK() - feed.left_at < KEPT_S):
            spelling = _Spelling(self._one, self._texts.detokeniser().feed)
            found.append(View(generation, spelling, feed.name, feed.post, CLOCK()))
        return found

    def open(self, key: Key) -> Feed | None:
        """The key's feed for one page more; None where it has too many."""
        for old in [feed for feed in self.feeds.values() if not feed.pages and CLOCK() - feed.left_at >= KEPT_S]:
            del self.feeds[old.key.id]
        feed = self.feeds.setdefault(key.id, Feed(key, asyncio.get_running_loop()))
        if feed.pages >= MAX_PAGES:
            return None
        feed.pages += 1
        return feed

    def close(self, feed: Feed) -> None:
        """A page was closed."""
        feed.pages -= 1
        feed.left_at = CLOCK()


class _Spelling:
    def __init__(self, one: Callable[[int], str], following: Callable[[int], str]) -> None:
        self.one, self.next = one, following
