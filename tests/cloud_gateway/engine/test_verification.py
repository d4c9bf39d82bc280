"""Both ways of verifying sampled tokens through the whole engine: exact, fresh or reproducible, closed to workers."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from cloud_gateway.core.requests.request import GenerationRequest, Speculation, Usage
from cloud_gateway.engine.loop import Engine
from edgespec.core.protocol.messages import Open, Sampling
from tests.support.engines import Make, complete, engines
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.model import next_logits
from tools.doubles.workers import LoopWorker
from tools.lossless import exact
from tools.lossless.statistics import Fit, chi_square

pytestmark = pytest.mark.driven
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
LENGTH, ANSWERS = 2, 600
"""Tokens of a completion, and completions of a fit: enough for p < 1e-6 with each planted fault."""
PLAIN = Sampling(temperature=1.2, top_k=4, seed=1)
ENOUGH = 1e-4


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    seeds, seeded = itertools.count(), np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda *seed: seeded(*seed or ([5, next(seeds)],)))
    with engines() as start:

        def build(worker: LoopWorker | None = None, local: TableDraft | None = None, **settings: Any) -> Engine:
            chosen = {"verification": "rejection", "queue_limit": 10_000} | settings
            return start(worker, local, TableTarget(slots=8, pass_s=0.002), **chosen)

        yield build


async def answer(engine: Engine, sampling: Sampling, count: int = LENGTH, **options: Any) -> tuple[list[int], Usage]:
    request = GenerationRequest(PROMPT, count, sampling, ignore_eos=True, speculation=Speculation(**options))
    tokens, done = await complete(engine, request)
    assert done.error is None
    return tokens, done.usage


def expected(sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The exact distribution of whole answers, by other code than the engine's."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        found = {
            (*path, token): probability * share
            for path, probability in found.items()
            for token, share in exact.next_token(
                next_logits([*PROMPT, *path]).tolist(), sampling, PROMPT, list(path)
            ).items()
        }
    return found


async def fit(engine: Engine, sampling: Sampling, answers: int, **options: object) -> tuple[Fit, list[Usage]]:
    results = await asyncio.gather(*(answer(engine, sampling, **options) for _ in range(answers)))
    truth = expected(sampling)
    seen = Counter(tuple(tokens) for tokens, _ in results)
    assert set(seen) <= set(truth)
    observed = np.array([seen[path] for path in truth])
    return chi_square(observed, np.array(list(truth.values()))), [usage for _, usage in results]


# --- exact -----------------------------------------------------------------------------------------------------------


async def test_rejection_gives_the_targets_distribution(make: Make) -> None:
    engine = make(None, TableDraft(0.5, leaves=4), policy="colocated-tree", k=2)
    found, usages = await fit(engine, PLAIN, ANSWERS)
    assert found.cells > 10 and found.p > ENOUGH
    accepted = sum(usage.accepted.get("local", 0) for usage in usages)
    assert accepted > ANSWERS * 0.3 and {usage.verification for usage in usages} == {"rejection"}


# --- closed to workers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "sent_seed"), [("rejection", None), ("shared-noise", 1)])
async def test_a_seed_goes_to_workers_only_where_it_improves_their_drafts(
    make: Make, method: str, sent_seed: int | None
) -> None:
    worker = LoopWorker(0.0)
    await answer(make(worker, verification=method), PLAIN)
    (opening,) = (body for body in worker.seen if isinstance(body, Open))
    assert opening.sampling.seed == sent_seed and opening.sampling.top_k == 4


# --- which of the two ------------------------------------------------------------------------------------------------


async def test_fresh_randomness_differs_each_time_and_a_seed_does_not(make: Make) -> None:
    engine = make(None, TableDraft(0.5), policy="colocated", k=3)
    fresh = [await answer(engine, PLAIN, 20) for _ in range(4)]
    seeded = [await answer(engine, PLAIN, 20, verification="shared-noise") for _ in range(2)]
    assert len({tuple(tokens) for tokens, _ in fresh}) == 4
    assert seeded[0][0] == seeded[1][0] and seeded[0][1].verification == "shared-noise"


async def test_a_request_chooses_for_itself_and_greedy_needs_neither(make: Make) -> None:
    engine = make(None, TableDraft(0.5), policy="colocated", verification="shared-noise")
    _, usage = await answer(engine, PLAIN, verification="rejection")
    assert usage.verification == "rejection"
    greedy = Sampling(temperature=0.0)
    tokens, usage = await answer(engine, greedy, verification="rejection")
    assert usage.verification == "shared-noise" and tokens[0] == int(next_logits(PROMPT).argmax())


async def test_the_gateways_own_candidates_use_the_noise(make: Make) -> None:
    """A draft that is the target itself is always right, sampled too; ranked plainly it would be right now and then."""
    engine = make(None, TableDraft(1.0), policy="colocated", k=3, verification="shared-noise")
    tokens, usage = await answer(engine, Sampling(temperature=1.2, seed=7), 200)
    plain, _ = await answer(engine, Sampling(temperature=1.2, seed=7), 200, policy="plain")
    assert tokens == plain and usage.accepted["local"] == usage.drafted["local"] - (usage.rounds * 4 - 200)
