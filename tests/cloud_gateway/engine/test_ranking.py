"""Workers that bring nothing beside an honest one that is farther away: who gets the requests, and what they cost."""

from __future__ import annotations

from collections import Counter

import pytest

from cloud_gateway.core.requests.request import GenerationRequest
from tests.support.engines import complete, engines
from tools.doubles.engines import TableTarget
from tools.doubles.workers import LoopWorker, OneWorker, Team

pytestmark = [pytest.mark.driven, pytest.mark.claim("a-useless-worker-takes-few-requests-from-an-honest-one")]
TOKENS, REQUESTS, PASS_S = 48, 12, 0.02
NEAR_S, FAR_S = 0.0005, 0.004


def member(name: str, delay_s: float, step_s: float = 0.006, right: float = 0.8) -> LoopWorker:
    return LoopWorker(delay_s, right, step_s, id=name, name=name)


def honest() -> LoopWorker:
    return member("honest", FAR_S)


def silent() -> OneWorker:
    worker = member("bad", NEAR_S)
    worker.muted = True
    return worker


def slow() -> OneWorker:
    return member("bad", NEAR_S, step_s=3.0)


def lying() -> OneWorker:
    return member("bad", NEAR_S, right=0.0)


async def served(*workers: OneWorker, requests: int = REQUESTS) -> tuple[Counter[str], float, list[list[int]]]:
    """Rounds by the worker that drafted last, tokens a pass, and the texts of requests one after the other."""
    rounds, texts = Counter[str](), list[list[int]]()
    with engines() as make:
        engine = make(Team(*workers), None, TableTarget(pass_s=PASS_S), policy="wanspec")
        for number in range(requests):
            request = GenerationRequest([1, 2, 3, number], TOKENS, ignore_eos=True, key=f"key {number % 2}")
            tokens, done = await complete(engine, request)
            rounds[done.usage.workers[-1]] += done.usage.rounds
            texts.append(tokens)
    return rounds, sum(map(len, texts)) / rounds.total(), texts


async def test_a_useless_worker_takes_few_requests_from_an_honest_one() -> None:
    _, alone, texts = await served(honest())
    for bad in (silent, slow, lying):
        rounds, beside, same = await served(honest(), bad())
        assert same == texts, bad
        assert rounds["honest"] > 0.7 * rounds.total(), bad
        assert beside > 0.7 * alone > 1.2, bad  # the first requests teach it


async def test_a_useless_worker_keeps_a_request_that_no_other_may_have() -> None:
    _, pace, _ = await served(silent(), requests=2)
    assert pace == 1
