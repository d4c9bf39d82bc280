"""Classic rejection sampling through the whole engine: exact, fresh each time, closed to workers."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from cloud_gateway.core.requests.request import GenerationRequest, Speculation, Usage
from cloud_gateway.core.verify.verification import BUILT_IN, Method
from cloud_gateway.engine.loop import Engine
from cloud_gateway.parts.rejection import PART
from cloud_gateway.parts.rejection.sampling import probabilities
from edgespec.core.protocol.messages import Open, Sampling
from edgespec.core.sampling.logits import Processor
from tests.support.engines import Make, complete, engines
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.model import EOS, HashModel, Logits, next_logits
from tools.doubles.workers import LoopWorker
from tools.lossless import exact
from tools.lossless.statistics import Fit, chi_square

pytestmark = pytest.mark.driven
METHODS: Mapping[str, Method] = {**BUILT_IN, **{name: load() for name, load in PART.methods.items()}}
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
            chosen = {"verification": "rejection", "queue_limit": 10_000, "methods": METHODS} | settings
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


async def test_rejection_gives_the_targets_distribution(make: Make) -> None:
    engine = make(None, TableDraft(0.5, leaves=4), policy="local-tree", k=2)
    found, usages = await fit(engine, PLAIN, ANSWERS)
    assert found.cells > 10 and found.p > ENOUGH
    accepted = sum(usage.accepted.get("local", 0) for usage in usages)
    assert accepted > ANSWERS * 0.3 and {usage.verification for usage in usages} == {"rejection"}


async def test_workers_are_sent_no_seed(make: Make) -> None:
    worker = LoopWorker(0.0)
    await answer(make(worker), PLAIN)
    (opening,) = (body for body in worker.seen if isinstance(body, Open))
    assert opening.sampling.seed is None and opening.sampling.top_k == 4


async def test_fresh_randomness_differs_each_time_and_a_seed_does_not(make: Make) -> None:
    engine = make(None, TableDraft(0.5), policy="local-chain", k=3)
    fresh = [await answer(engine, PLAIN, 20) for _ in range(4)]
    seeded = [await answer(engine, PLAIN, 20, verification="shared-noise") for _ in range(2)]
    assert len({tuple(tokens) for tokens, _ in fresh}) == 4
    assert seeded[0][0] == seeded[1][0] and seeded[0][1].verification == "shared-noise"


async def test_a_request_chooses_for_itself_and_greedy_needs_neither(make: Make) -> None:
    engine = make(None, TableDraft(0.5), policy="local-chain", verification="shared-noise")
    _, usage = await answer(engine, PLAIN, verification="rejection")
    assert usage.verification == "rejection"
    greedy = Sampling(temperature=0.0)
    tokens, usage = await answer(engine, greedy, verification="rejection")
    assert usage.verification == "shared-noise" and tokens[0] == int(next_logits(PROMPT).argmax())


class Brief(HashModel):
    """A model that ends a completion about every third token."""

    def row(self, tokens: Sequence[int]) -> Logits:
        logits = super().row(tokens)
        logits[EOS] += 2.5
        return logits


@pytest.fixture
async def make_brief(seeded: None) -> AsyncIterator[Make]:
    with engines() as start:
        yield lambda worker=None, local=None, **settings: start(
            worker, local, TableTarget(slots=4, pass_s=0.001, model=Brief()), methods=METHODS, **settings
        )


async def test_rejection_samples_the_distribution_without_the_end(make_brief: Make) -> None:
    engine = make_brief(None, TableDraft(model=Brief(right=0.5), leaves=4), policy="local-tree", k=2)
    sampling = Sampling(temperature=1.2, top_k=4)
    prompt = [3, 1, 4]
    wanted = GenerationRequest(
        prompt, 2, sampling, min_tokens=2, ignore_eos=True, speculation=Speculation(verification="rejection")
    )
    seen = Counter[tuple[int, ...]]()
    for _ in range(200):
        seen[tuple((await complete(engine, wanted))[0])] += 1
    possible = {
        (first, second): one * other
        for first, one in chances(prompt, sampling).items()
        for second, other in chances([*prompt, first], sampling).items()
    }
    assert set(seen) <= set(possible) and not any(EOS in path for path in seen)
    fit = chi_square(np.array([seen[path] for path in possible]), np.array(list(possible.values())))
    assert fit.p > 1e-4


def chances(tokens: Sequence[int], sampling: Sampling) -> dict[int, float]:
    """Probabilities of the tokens that may follow, without the end."""
    logits = Brief().row(tokens).astype(np.float64)
    logits[EOS] = -np.inf
    found = probabilities(Processor(sampling).candidates(logits), len(logits))
    return {token: float(found[token]) for token in np.flatnonzero(found).tolist()}


@pytest.mark.claim("a-local-tree-makes-at-most-k-passes-a-round")
async def test_a_local_tree_makes_at_most_k_passes_a_round(make: Make) -> None:
    engine = make(None, TableDraft(0.7, leaves=16), policy="local-tree", k=16)
    tokens, usage = await answer(engine, Sampling(temperature=2.0, seed=1), 12)
    assert len(tokens) == 12
    assert 0 < usage.local_draft_passes <= 16 * usage.rounds
