"""The engine with several workers for a request: the text stays the target's where some lie or leave."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.core.requests.request import GenerationRequest
from edgespec.core.protocol.messages import Close, Open, Share, ToWorker
from tests.support.engines import complete, engines
from tests.support.until import until
from tools.doubles.engines import TableTarget
from tools.doubles.workers import LoopWorker, Team
from tools.lossless.random_worker import Request

pytestmark = pytest.mark.driven

TOKENS = 60


def member(name: str, delay_s: float = 0.002) -> LoopWorker:
    return LoopWorker(delay_s, id=name, name=name)


class Liar(LoopWorker):
    """Answers every message with a random tree; takes no notice of its share."""

    def send(self, worker: str, bodies: Sequence[ToWorker]) -> None:
        self.seen += bodies
        for body in bodies:
            self._answer(body)

    def _answer(self, body: ToWorker) -> None:
        match body:
            case Open():
                self.known = {**getattr(self, "known", {}), body.request: Request(body)}
            case Close() | Share():
                return
            case _:
                self.known[body.request].prefix.extend(body.tokens)
        assert self.engine is not None
        self.engine.post(FrameArrived(self.worker.id, self.known[body.request].nonsense(random.Random(7), 64)))


def request(seed: int = 0) -> GenerationRequest:
    return GenerationRequest([1, 2, 3, seed], TOKENS, ignore_eos=True)


def opened(worker: LoopWorker) -> int:
    return sum(isinstance(body, Open) for body in worker.seen)


async def alone(seed: int = 0) -> list[int]:
    with engines() as make:
        return (await complete(make(policy="plain"), request(seed)))[0]


@pytest.mark.parametrize("hostile", [0, 1, 2])
async def test_with_any_two_workers_the_text_is_that_of_none(hostile: int) -> None:
    a, b = (Liar(0.001, id=name, name=name) for name in "ab")
    team = Team(a if hostile else member("a"), b if hostile > 1 else member("b"))
    with engines() as make:
        tokens, done = await complete(make(team, policy="wanspec", workers_per_request=2), request())
    assert tokens == await alone()
    assert set(done.usage.workers) == {"a", "b"}
    if not hostile:
        counts = done.usage.by_worker
        assert all(one["frames"] for one in counts.values())
        assert sum(one["accepted"] for one in counts.values()) == done.usage.accepted["worker"] > 0


async def test_another_requests_need_of_a_worker_comes_first() -> None:
    a, b = member("a", 0.001), member("b", 0.001)
    with engines() as make:
        engine = make(Team(a, b), None, TableTarget(pass_s=0.004), policy="wanspec", workers_per_request=2)
        first = asyncio.ensure_future(complete(engine, request()))
        await until(lambda: bool(opened(a) and opened(b)))
        _, done = await complete(engine, request(5))
        await first
    assert done.usage.workers[0] == "b", "the one that shared the first request is given to the second"
    assert any(isinstance(body, Close) and body.reason == "needed elsewhere" for body in b.seen)
