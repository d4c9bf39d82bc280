"""The linked workers as the engine uses them: what they are sent, and what is learnt of them. It knows no request."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from cloud_gateway.core.requests.events import FrameTaken, Released, Send
from cloud_gateway.core.requests.pace import PaceAlone
from cloud_gateway.core.requests.router import LinkedWorker, Merit
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import ToWorker
from edgespec.core.protocol.worth import WorkerFigures


class Workers:
    """The link layer as the engine sees it: `linked` and `view` on the engine's thread, the rest on the event loop.

    This one is that of a gateway without links, which decodes everything itself.
    """

    def linked(self) -> Mapping[str, LinkedWorker]:
        """Workers by id, the paused ones included; the mapping is live, so that asking costs nothing."""
        return {}

    def view(self, worker: str) -> LinkedWorker | None:
        """One of them, asked for at every decision."""
        return self.linked().get(worker)

    def send(self, worker: str, bodies: Sequence[ToWorker]) -> None:
        """Sends messages, in one frame if they fit; those to a worker that has gone are dropped."""

    def punish(self, worker: str, error: RemoteProtocolError, request: int) -> None:
        """Ends the link of a worker that broke the protocol over this request."""

    def audited(self, worker: str, key: str, claimed: float, accepted: int) -> None:
        """How far a worker's candidates for one request of an API key were what it claimed."""

    def account(self, worker: str, figures: WorkerFigures) -> None:
        """Sends a worker its figures, if it takes them."""

    def diverged(self, worker: str) -> None:
        """The target left what the worker had drafted for a request."""

    def note(self, worker: str, reason: str, text: str) -> None:
        """Counts and logs something that was dropped but does not end the link."""


def scope_for(worker: str, scope: bytes) -> bytes:
    """A cache scope as it is sent to one worker, so that two workers cannot find out that they serve the same key."""
    data = b"edgespec/1 cache scope\0" + scope + worker.encode()
    return hashlib.sha256(data).digest()[: len(scope)]


class WorkerPool:
    """Collects the messages to workers until the end of a turn, and reports to the link layer. Engine's thread."""

    def __init__(self, workers: Workers, post: Callable[[Callable[[], None]], None]) -> None:
        """`post` hands a call to the event loop, in order."""
        self.merit = Merit()
        self.pace_alone = PaceAlone()
        self._workers = workers
        self._post = post
        self._outgoing: dict[str, list[ToWorker]] = {}
        """Messages by worker, since the end of the last turn."""

    def linked(self) -> dict[str, LinkedWorker]:
        """The linked workers by id, in a copy: the link layer changes its mapping meanwhile."""
        return dict(self._workers.linked())

    def view(self, worker: str) -> LinkedWorker | None:
        """A linked worker; None if it has gone."""
        return self._workers.view(worker)

    def send(self, message: Send) -> None:
        """Queues a message for a worker, until the end of the turn."""
        if message.diverged:
            self._post(lambda: self._workers.diverged(message.worker))
        self._outgoing.setdefault(message.worker, []).append(message.body)

    def outgoing(self) -> Iterator[Callable[[], None]]:
        """What sends each worker its messages of this turn; for the event loop, before anything else of the turn."""
        messages = self._outgoing
        self._outgoing = {}

        for worker, bodies in messages.items():
            yield partial(self._workers.send, worker, bodies)

    def released(self, key: str, released: Released) -> None:
        """Reports what a worker has brought for a request of this API key."""
        given = released.given
        figures = WorkerFigures(
            tokens=given.tokens,
            accepted=given.brought,
            verified=given.checked,
            frames=given.received,
            late=given.late,
            spent_ms=round(given.span.spent_s * 1000),
            alone_ms=round(self.pace_alone.alone_s(given.span) * 1000),
        )
        self.merit.ended(given.name, key, given.rounds, given.frames, given.brought, figures)
        total = self.merit.of(given.name).figures
        self._post(lambda: self._workers.account(given.worker, total))
        self._post(lambda: self._workers.audited(given.worker, key, given.claimed, given.accepted))

    def report_unknown_prefix(self, taken: FrameTaken) -> None:
        """Reports a frame of a prefix that never was; does nothing for other frames."""
        if taken.unknown_prefix:
            text = "a tree names tokens that never were its request's prefix"
            self._post(lambda: self._workers.note(taken.worker, "prefix", text))

    def punish(self, worker: str, error: RemoteProtocolError, request: int) -> None:
        """Ends the link of a worker that broke the protocol, or the gateway's own code."""
        self._post(lambda: self._workers.punish(worker, error, request))
