"""What goes wrong with drafts in a cluster: in each case the text stays the same, and the price is bounded.

Draft pool down, stale drafts, vocabulary drift, and a worker for a gateway whose requests share passes, on the driven
clock.
"""

from __future__ import annotations

import asyncio

import pytest

from cloud_gateway.core.requests.request import GenerationRequest, Speculation, Usage
from edgespec.core.protocol.messages import Sampling
from tests.support.engines import complete, engines
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.model import HashModel, Logits
from tools.doubles.workers import LoopWorker

COUNT = 60
PASS_S = 0.02
STEP_S = 0.004
PLAIN = Speculation(policy="plain")
pytestmark = pytest.mark.driven


def wanted(first: int = 1, speculation: Speculation | None = None) -> GenerationRequest:
    asked = speculation or Speculation(policy="adaptive", sources=())
    prompt = [first, *range(20)]
    greedy = Sampling(temperature=0)
    return GenerationRequest(prompt, COUNT, greedy, ignore_eos=True, speculation=asked, cache_scope=b"a")


async def plainly() -> tuple[list[int], Usage]:
    """The completion by a target whose passes take 20 ms, without drafts."""
    with engines() as make:
        tokens, done = await complete(make(target=TableTarget(pass_s=PASS_S)), wanted(speculation=PLAIN))
    return tokens, done.usage


async def test_stale_drafts_are_dropped_and_cost_no_more_than_a_tenth() -> None:
    """A worker half a second away: the text has left what a frame continues before it arrives."""
    with engines() as make:
        engine = make(LoopWorker(0.25, 0.5, STEP_S), None, TableTarget(pass_s=PASS_S))
        (plain, before), (found, done) = [await complete(engine, wanted(speculation=one)) for one in (PLAIN, None)]
    base = before.usage
    usage = done.usage
    assert found == plain
    assert usage.frames["stale"] > usage.frames["used"]
    assert usage.times.decode_s <= 1.1 * base.times.decode_s


class Drifted(HashModel):
    """A draft whose vocabulary has the same size and other words: each token has moved by one."""

    def logits(self, tokens: object) -> Logits:
        moved: Logits = super().logits(tokens)[[*range(1, self.vocab_size), 0]]
        return moved


async def test_vocabulary_drift_is_left_alone_by_the_second_request() -> None:
    """The digests of the tokenizers agree and the words do not, which the handshake cannot see."""
    plain, base = await plainly()
    with engines() as make:
        engine = make(LoopWorker(0.005, step_s=STEP_S, model=Drifted()), None, TableTarget(pass_s=PASS_S))
        first, second = [await complete(engine, wanted()) for _ in range(2)]
    assert first[0] == second[0] == plain
    for _, done in (first, second):
        assert sum(done.usage.accepted.values()) <= 0.1 * sum(done.usage.drafted.values())
    assert first[1].usage.times.decode_s <= 1.5 * base.times.decode_s, "what it takes to learn that"
    assert second[1].usage.times.decode_s <= 1.15 * base.times.decode_s


LENGTH = 40
LARGE_S = 0.045
ROW_S = 0.017
DRAFT_S = 0.012
"""A large model in llama.cpp on one core without AVX-512, and its draft."""


def asked(number: int, policy: str) -> GenerationRequest:
    prompt = [number, *range(20)]
    speculation = Speculation(policy=policy, sources=())
    return GenerationRequest(prompt, LENGTH, Sampling(temperature=0), ignore_eos=True, speculation=speculation)


async def together(requests: int, policy: str, right: float) -> tuple[float, list[list[int]]]:
    """Seconds until the last of them has ended, and their texts."""
    draft = TableDraft(right=right)
    draft.step_s = DRAFT_S
    target = TableTarget(slots=requests, pass_s=lambda rows: LARGE_S + ROW_S * rows)
    with engines(curve={rows: LARGE_S + ROW_S * rows for rows in (1, 2, 4, 8, 16, 32, 64)}) as make:
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
