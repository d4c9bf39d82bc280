"""Work on requests that wait: what it is called with, and when, by an engine that has one slot."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from cloud_gateway.core.requests.events import FrameArrived, FrameTaken
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.engine.exchange import Active, Declined
from cloud_gateway.engine.queue_work import Idle, QueueWork
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import Open, Tree
from tests.support.engines import complete, engines
from tests.support.until import until
from tools.doubles.engines import TableTarget
from tools.doubles.workers import LoopWorker, OneWorker

pytestmark = pytest.mark.driven
NUMBER = 1 << 62
TOKENS = 40
Calls = list[tuple[object, ...]]


def request(first: int, groups: frozenset[str]) -> GenerationRequest:
    return GenerationRequest([first, 2, 3], TOKENS, ignore_eos=True, groups=groups)


class Noting(QueueWork):
    """Notes what it is called with."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def lead(self, waiting: Sequence[Active], idle: Idle) -> None:
        if waiting:
            self.calls.append(("waits", waiting[0].request.tokens[0], *idle()))

    def left(self, active: Active, why: str) -> None:
        self.calls.append((why, active.request.tokens[0], active.slot))

    def frame_arrived(self, event: FrameArrived) -> FrameTaken | None:
        if event.frame.request != NUMBER:
            return None
        error = RemoteProtocolError("shape", "it broke the protocol")
        return FrameTaken("rejected", event.worker, error=error)

    def declined(self, event: Declined) -> None:
        self.calls.append(("declined", event.request))

    def worker_needed(self, worker: str, why: str) -> None:
        self.calls.append(("needed", worker, why))


class Watched(LoopWorker):
    """Notes among the calls when it is sent a request."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(id="w", name="w")
        self.calls = calls

    def send(self, worker: str, bodies: Sequence[object]) -> None:
        self.calls += [("sent", body.tokens[0]) for body in bodies if isinstance(body, Open)]
        super().send(worker, bodies)


async def test_work_is_shown_who_waits_and_what_is_idle_and_then_loses_it() -> None:
    calls: Calls = []
    with engines(queue_work=lambda lent: Noting(calls)) as make:
        engine = make(Watched(calls), None, TableTarget(slots=1))
        first = asyncio.create_task(complete(engine, request(1, frozenset({"theirs"}))))
        await asyncio.sleep(0)
        await complete(engine, request(2, frozenset({"default"})))
        await first

    seen = [call for call in dict.fromkeys(calls) if call[0] != "waits" or call[1] == 2]
    assert seen == [
        ("admitted", 1, -1),
        ("waits", 2, "w"),
        ("cancelled", 1, -1),
        ("admitted", 2, -1),
        ("needed", "w", "needed elsewhere"),
        ("sent", 2),
        ("cancelled", 2, -1),
    ]


async def test_work_that_refuses_a_frame_ends_the_link_and_loses_the_worker() -> None:
    calls: Calls = []
    worker = OneWorker()
    with engines(queue_work=lambda lent: Noting(calls)) as make:
        engine = make(worker, None, TableTarget())
        engine.post(Declined("w", NUMBER))
        engine.post(FrameArrived("w", Tree(NUMBER, 1, 1, b"", 1, [0], [5], [1], [1])))
        await until(lambda: worker.punished)

    assert calls == [("declined", NUMBER), ("needed", "w", "moved")]
