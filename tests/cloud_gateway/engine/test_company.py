"""Requests that share passes, on the driven clock: a worker makes none of them slower than they are without one."""

from __future__ import annotations

import asyncio

import pytest

from cloud_gateway.core.requests.request import GenerationRequest, Speculation
from edgespec.core.protocol.messages import Sampling
from tests.support.engines import complete, engines
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.workers import LoopWorker

COUNT = 40
PASS_S, ROW_S, DRAFT_S = 0.045, 0.017, 0.012
"""A large model in llama.cpp on one core without AVX-512, and its draft."""
pytestmark = pytest.mark.driven


def asked(number: int, policy: str) -> GenerationRequest:
    prompt, speculation = [number, *range(20)], Speculation(policy=policy, sources=())
    return GenerationRequest(prompt, COUNT, Sampling(temperature=0), ignore_eos=True, speculation=speculation)


async def together(requests: int, policy: str, right: float) -> tuple[float, list[list[int]]]:
    """Seconds until the last of them has ended, and their texts."""
    draft = TableDraft(right=right)
    draft.step_s = DRAFT_S
    target = TableTarget(slots=requests, pass_s=lambda rows: PASS_S + ROW_S * rows)
    with engines(curve={rows: PASS_S + ROW_S * rows for rows in (1, 2, 4, 8, 16, 32, 64)}) as make:
        engine = make(LoopWorker(0.0075, right, DRAFT_S), draft, target)
        clock = asyncio.get_running_loop().time
        began = clock()
        ended = await asyncio.gather(*(complete(engine, asked(number, policy)) for number in range(requests)))
    return clock() - began, [tokens for tokens, _ in ended]


@pytest.mark.parametrize(("requests", "right"), [(2, 0.7), (4, 0.3)])
async def test_a_full_gateway_is_not_slower_because_of_a_worker(requests: int, right: float) -> None:
    plain_s, plain = await together(requests, "plain", right)
    seconds, found = await together(requests, "adaptive", right)
    assert found == plain
    assert seconds <= 1.03 * plain_s
