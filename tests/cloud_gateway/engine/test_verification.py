"""Sampled tokens verified through the whole engine, by a seed; and `min_tokens`, with which no draft changes the
completion of plain decoding either.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cloud_gateway.core.requests.request import GenerationRequest, Speculation, Usage
from cloud_gateway.core.verify.verification import BUILT_IN, SHARED_NOISE
from cloud_gateway.engine.loop import Engine
from edgespec.core.protocol.messages import Open, Sampling
from edgespec.core.sampling.logits import Processor
from tests.support.engines import Make, complete, engines
from tests.support.noise import gumbel_all
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.model import EOS, HashModel, Logits
from tools.doubles.workers import LoopWorker

pytestmark = pytest.mark.driven
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
LENGTH = 2
ANSWERS = 600
"""Tokens of a completion, and completions of a fit: enough for p < 1e-6 with each planted fault."""
PLAIN = Sampling(temperature=1.2, top_k=4, seed=1)
ENOUGH = 1e-4


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh randomness is the same in each run."""
    seeds = itertools.count()
    made = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda *seed: made(*seed or ([5, next(seeds)],)))


@pytest.fixture
async def make(seeded: None) -> AsyncIterator[Make]:
    with engines() as start:

        def build(worker: LoopWorker | None = None, local: TableDraft | None = None, **settings: Any) -> Engine:
            return start(worker, local, TableTarget(slots=8, pass_s=0.002), queue_limit=10_000, **settings)

        yield build


async def answer(engine: Engine, sampling: Sampling, count: int = LENGTH, **options: Any) -> tuple[list[int], Usage]:
    request = GenerationRequest(PROMPT, count, sampling, ignore_eos=True, speculation=Speculation(**options))
    tokens, done = await complete(engine, request)
    assert done.error is None
    return tokens, done.usage


async def test_the_seed_goes_to_workers_since_it_improves_their_drafts(make: Make) -> None:
    worker = LoopWorker(0.0)
    await answer(make(worker), PLAIN)
    (opening,) = (body for body in worker.seen if isinstance(body, Open))
    assert opening.sampling.seed == 1 and opening.sampling.top_k == 4


async def test_a_method_without_a_seed_sends_workers_none(make: Make) -> None:
    worker = LoopWorker(0.0)
    unseeded = replace(SHARED_NOISE, name="unseeded", seeded=False)
    engine = make(worker, verification="unseeded", methods={**BUILT_IN, "unseeded": unseeded})
    _, sampled = await answer(engine, PLAIN)
    _, greedy = await answer(engine, Sampling(temperature=0.0))
    seeds = [body.sampling.seed for body in worker.seen if isinstance(body, Open)]
    assert seeds[0] is None
    assert (sampled.verification, greedy.verification) == ("unseeded", "shared-noise")


async def test_the_gateways_own_candidates_use_the_noise(make: Make) -> None:
    """A draft that is the target itself is always right, sampled too; ranked plainly it would be right now and then."""
    engine = make(None, TableDraft(1.0), policy="local-chain", k=3)
    tokens, usage = await answer(engine, Sampling(temperature=1.2, seed=7), 200)
    plain, _ = await answer(engine, Sampling(temperature=1.2, seed=7), 200, policy="plain")
    assert tokens == plain and usage.accepted["local"] == usage.drafted["local"] - (usage.rounds * 4 - 200)


MIN = 12
MAX = 60
SAMPLED = Sampling(temperature=1.2, top_k=8, seed=4)


class Brief(HashModel):
    """A model that ends a completion about every third token."""

    def row(self, tokens: Sequence[int]) -> Logits:
        logits = super().row(tokens)
        logits[EOS] += 2.5
        return logits


def twin(prompt: Sequence[int], sampling: Sampling, least: int) -> list[int]:
    """One token at a time, by other code than the engine's; without the end."""
    tokens = list(prompt)
    model = Brief()
    while len(tokens) < len(prompt) + MAX:
        logits = model.row(tokens).astype(np.float64)
        if len(tokens) < len(prompt) + least:
            logits[EOS] = -np.inf
        scores = Processor(sampling).candidates(logits).dense(len(logits))
        noise = gumbel_all(sampling.seed or 0, len(tokens), len(logits)) if sampling.temperature else 0
        token = int(np.argmax(scores + noise))
        if token == EOS:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


@pytest.fixture
async def make_brief(seeded: None) -> AsyncIterator[Make]:
    with engines() as start:
        yield lambda worker=None, local=None, **settings: start(
            worker, local, TableTarget(slots=4, pass_s=0.001, model=Brief()), **settings
        )


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("helped", [False, True], ids=["alone", "helped"])
async def test_no_end_comes_early_and_no_draft_changes_a_token(
    make_brief: Make, sampling: Sampling, helped: bool
) -> None:
    sides = (LoopWorker(0.001, 0.9), TableDraft(model=Brief(right=0.8))) if helped else ()
    engine = make_brief(*sides, policy="adaptive" if helped else "plain")
    accepted = 0
    early = 0
    for number in range(4):
        prompt = [3, 1, number]
        wanted = twin(prompt, sampling, MIN)
        early += len(twin(prompt, sampling, 0)) < MIN <= len(wanted)
        tokens, done = await complete(engine, GenerationRequest(prompt, MAX, sampling, min_tokens=MIN))
        assert (tokens, done.finish) == (wanted, "stop" if len(wanted) < MAX else "length")
        accepted += sum(done.usage.accepted.values())
    assert early >= 2 and (accepted > 0) == helped


async def test_the_whole_length_can_be_asked_for(make_brief: Make) -> None:
    tokens, done = await complete(make_brief(), GenerationRequest([3, 1], 20, SAMPLED, min_tokens=20))
    assert (len(tokens), done.finish) == (20, "length") and EOS not in tokens
