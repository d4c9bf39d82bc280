"""The engine with several workers: the text stays the target's if some lie or leave, and those that bring nothing take
few requests from an honest one that is farther away.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.engine.exchange import Declined
from edgespec.core.protocol.messages import Close, Open, Share, ToWorker
from tests.support.engines import complete, engines
from tests.support.until import until
from tools.doubles.engines import TableTarget
from tools.doubles.workers import LoopWorker, OneWorker, Team
from tools.lossless.random_worker import Request

pytestmark = pytest.mark.driven

TOKENS = 60


def member(name: str, delay_s: float = 0.002, step_s: float = 0.0005, right: float = 0.8) -> LoopWorker:
    return LoopWorker(delay_s, right, step_s, id=name, name=name)


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


class Declining(OneWorker):
    """Declines each request and each answer."""

    def send(self, worker: str, bodies: Sequence[ToWorker]) -> None:
        super().send(worker, bodies)
        assert self.engine is not None

        for body in bodies:
            if isinstance(body, Open):
                self.engine.post(Declined(worker, body.request))


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
    a = member("a", 0.001)
    b = member("b", 0.001)
    with engines() as make:
        engine = make(Team(a, b), None, TableTarget(pass_s=0.004), policy="wanspec", workers_per_request=2)
        first = asyncio.ensure_future(complete(engine, request()))
        await until(lambda: bool(opened(a) and opened(b)))
        _, done = await complete(engine, request(5))
        await first
    assert done.usage.workers[0] == "b", "the one that shared the first request is given to the second"
    assert any(isinstance(body, Close) and body.reason == "needed elsewhere" for body in b.seen)


CLAIM = pytest.mark.claim("a-useless-worker-takes-few-requests-from-an-honest-one")
REQUESTS = 12
LENGTH = 48
PASS_S = 0.02
NEAR_S = 0.0005
FAR_S = 0.004


def honest() -> LoopWorker:
    return member("honest", FAR_S, 0.006)


def silent() -> OneWorker:
    worker = member("bad", NEAR_S, 0.006)
    worker.muted = True
    return worker


def slow() -> OneWorker:
    return member("bad", NEAR_S, step_s=3.0)


def lying() -> OneWorker:
    return member("bad", NEAR_S, 0.006, right=0.0)


async def served(*workers: OneWorker, requests: int = REQUESTS) -> tuple[Counter[str], float, list[list[int]]]:
    """Rounds by the worker that drafted last, tokens a pass, and the texts of requests one after the other."""
    rounds = Counter[str]()
    texts = list[list[int]]()
    with engines() as make:
        engine = make(Team(*workers), None, TableTarget(pass_s=PASS_S), policy="wanspec")
        for number in range(requests):
            request = GenerationRequest([1, 2, 3, number], LENGTH, ignore_eos=True, key=f"key {number % 2}")
            tokens, done = await complete(engine, request)
            rounds[done.usage.workers[-1]] += done.usage.rounds
            texts.append(tokens)
    return rounds, sum(map(len, texts)) / rounds.total(), texts


@CLAIM
async def test_a_useless_worker_takes_few_requests_from_an_honest_one() -> None:
    _, alone, texts = await served(honest())
    for bad in (silent, slow, lying):
        rounds, beside, same = await served(honest(), bad())
        assert same == texts, bad
        assert rounds["honest"] > 0.7 * rounds.total(), bad
        assert beside > 0.7 * alone > 1.2, bad  # the first requests teach it


@CLAIM
async def test_a_useless_worker_keeps_a_request_that_no_other_may_have() -> None:
    _, pace, _ = await served(silent(), requests=2)
    assert pace == 1


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_worker_that_declines_a_request_is_not_asked_again(workers: int) -> None:
    declining = Declining()
    other = LoopWorker(id="v", name="v", rtt_s=0.1, rtt_high_s=0.1)
    with engines() as make:
        engine = make(Team(declining, other), workers_per_request=workers)
        _, done = await complete(engine, request())

    assert [type(body) for body in declining.seen].count(Open) == 1
    assert done.usage.by_worker["v"]["frames"] > 0
