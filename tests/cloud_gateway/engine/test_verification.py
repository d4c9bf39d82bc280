"""Both ways of verifying sampled tokens through the whole engine: exact, fresh or reproducible, closed to workers; and
`min_tokens`, with which no draft changes the completion of plain decoding either.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest

from cloud_gateway.core.requests.request import GenerationRequest, Speculation, Usage
from cloud_gateway.engine.loop import Engine
from edgespec.core.protocol.messages import Open, Sampling
from edgespec.core.sampling.gumbel import gumbel_all
from edgespec.core.sampling.logits import Processor
from tests.support.engines import Make, complete, engines
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.model import EOS, HashModel, Logits, next_logits
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
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh randomness is the same in each run."""
    seeds, made = itertools.count(), np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda *seed: made(*seed or ([5, next(seeds)],)))


@pytest.fixture
async def make(seeded: None) -> AsyncIterator[Make]:
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


MIN, MAX = 12, 60
SAMPLED = Sampling(temperature=1.2, top_k=8, seed=4)


class Brief(HashModel):
    """A model that ends a completion about every third token."""

    def row(self, tokens: Sequence[int]) -> Logits:
        logits = super().row(tokens)
        logits[EOS] += 2.5
        return logits


def twin(prompt: Sequence[int], sampling: Sampling, least: int) -> list[int]:
    """One token at a time, by other code than the engine's; without the end."""
    tokens, model = list(prompt), Brief()
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
    engine, accepted, early = make_brief(*sides, policy="adaptive" if helped else "plain"), 0, 0
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


async def test_rejection_samples_the_distribution_without_the_end(make_brief: Make) -> None:
    engine = make_brief(None, TableDraft(model=Brief(right=0.5), leaves=4), policy="colocated-tree", k=2)
    sampling, prompt = Sampling(temperature=1.2, top_k=4), [3, 1, 4]
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
    """The share of the tokens that may follow, without the end."""
    logits = Brief().row(tokens).astype(np.float64)
    logits[EOS] = -np.inf
    found = Processor(sampling).candidates(logits).probabilities(len(logits))
    return {token: float(found[token]) for token in np.flatnonzero(found).tolist()}
