"""`min_tokens`: no end before the length asked for, with any draft the completion of plain decoding."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest

from cloud_gateway.core.requests.request import GenerationRequest, Speculation
from edgespec.core.protocol.messages import Sampling
from edgespec.core.sampling.gumbel import gumbel_all
from edgespec.core.sampling.logits import Processor
from tests.support.engines import Make, complete, engines
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.model import EOS, HashModel, Logits
from tools.doubles.workers import LoopWorker
from tools.lossless.statistics import chi_square

pytestmark = pytest.mark.driven
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
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    seeds, seeded = itertools.count(), np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda *seed: seeded(*seed or ([7, next(seeds)],)))
    with engines() as start:
        yield lambda worker=None, local=None, **settings: start(
            worker, local, TableTarget(slots=4, pass_s=0.001, model=Brief()), **settings
        )


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("helped", [False, True], ids=["alone", "helped"])
async def test_no_end_comes_early_and_no_draft_changes_a_token(make: Make, sampling: Sampling, helped: bool) -> None:
    sides = (LoopWorker(0.001, 0.9), TableDraft(model=Brief(right=0.8))) if helped else ()
    engine, accepted, early = make(*sides, policy="adaptive" if helped else "plain"), 0, 0
    for number in range(4):
        prompt = [3, 1, number]
        wanted = twin(prompt, sampling, MIN)
        early += len(twin(prompt, sampling, 0)) < MIN <= len(wanted)
        tokens, done = await complete(engine, GenerationRequest(prompt, MAX, sampling, min_tokens=MIN))
        assert (tokens, done.finish) == (wanted, "stop" if len(wanted) < MAX else "length")
        accepted += sum(done.usage.accepted.values())
    assert early >= 2 and (accepted > 0) == helped


async def test_the_whole_length_can_be_asked_for(make: Make) -> None:
    tokens, done = await complete(make(), GenerationRequest([3, 1], 20, SAMPLED, min_tokens=20))
    assert (len(tokens), done.finish) == (20, "length") and EOS not in tokens


async def test_rejection_samples_the_distribution_without_the_end(make: Make) -> None:
    engine = make(None, TableDraft(model=Brief(right=0.5), leaves=4), policy="colocated-tree", k=2)
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
    """Of the tokens that may follow, without the end."""
    logits = Brief().row(tokens).astype(np.float64)
    logits[EOS] = -np.inf
    found = Processor(sampling).candidates(logits).probabilities(len(logits))
    return {token: float(found[token]) for token in np.flatnonzero(found).tolist()}
