"""Sends consents to the linked workers that take them, and announces requests of keys that consented.

The engine's thread announces a request when it assigns a worker, before the turn ends and its `open` is handed to the
event loop. So the announcement is written first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from cloud_gateway.core.requests import events
from cloud_gateway.parts.healing.consents import consenting, message
from edgespec.core.errors import KeyStoreError
from edgespec.core.protocol.messages import Extra
from edgespec.parts.healing.consent import KIND, Consents, Learn, encode
from edgespec.shared.log_text import LimitedLog

if TYPE_CHECKING:
    from cloud_gateway.auth import KeyRing
    from cloud_gateway.core.requests.generation import Generation
    from cloud_gateway.engine.exchange import PolicyStart
    from cloud_gateway.links.link import WorkerInfo

log = logging.getLogger("cloud_gateway.parts.healing")

LOOK_S = 1.0
"""Between two looks at the list of keys: it may be changed by another process, and a worker may have linked."""


class Sender:
    """On the event loop, but for `announce`."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys
        self._lines = LimitedLog(log)
        self._sent: dict[str, tuple[bytes, Consents]] = {}
        """What each worker was sent last, by its id, and in which session."""
        self._workers: Callable[[], Iterable[WorkerInfo]] = lambda: ()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking: asyncio.Future[None] | None = None

    def start(self, workers: Callable[[], Iterable[WorkerInfo]]) -> None:
        """`workers`: the linked ones."""
        self._workers = workers
        self._loop = asyncio.get_running_loop()
        self._looking = asyncio.ensure_future(self._look_again())

    def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    def announce(self, worker: str, request: int, key: str) -> None:
        """A worker is assigned a request of this key. On the engine's thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._announce, worker, request, key)

    def _announce(self, worker: str, request: int, key: str) -> None:
        for info in self._learning():
            if info.id == worker and any(consent.key == key for consent in self._update(info).keys):
                _send(info, Learn(request, key))

    async def _look_again(self) -> None:
        while True:
            workers = self._learning()
            for info in workers:
                self._update(info)
            linked = {info.id for info in workers}
            self._sent = {worker: sent for worker, sent in self._sent.items() if worker in linked}
            await asyncio.sleep(LOOK_S)

    def _learning(self) -> list[WorkerInfo]:
        """The linked workers that learn."""
        return [info for info in self._workers() if KIND in info.features and not info.wire.over]

    def _update(self, info: WorkerInfo) -> Consents:
        """The present consents for this worker, which has been sent them. Without a list of keys there are none."""
        try:
            keys = self._keys.all()
        except KeyStoreError as error:
            self._lines.warning("keys", f"no worker may learn while the list of API keys cannot be read: {error}")
            return Consents(info.hello.tokenizer_digest, [])

        consents = message(info.hello.tokenizer_digest, consenting(keys, info.groups))
        if self._sent.get(info.id) != (info.session, consents):
            self._sent[info.id] = (info.session, consents)
            _send(info, consents)
        return consents


class Announcing:
    """Listens to requests of keys that consented (`engine.exchange.Recording`)."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def listener(self, generation: Generation, start: PolicyStart) -> events.Listener | None:
        """A request has just come."""
        if not generation.request.learn:
            return None
        return _Announced(partial(self._sender.announce, request=generation.id, key=generation.request.key))


class _Announced(events.Listener):
    """Announces one request to each worker that it is assigned to."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._announce = announce

    def handled(self, event: events.Event, effects: Sequence[events.Effect], now: float) -> None:
        # An assignment that came too late has no effects: nothing is sent to that worker.
        if isinstance(event, events.WorkerChanged) and event.assigns and effects:
            self._announce(event.worker)


def _send(info: WorkerInfo, body: Consents | Learn) -> None:
    info.wire.send(Extra(KIND, encode(body)))
