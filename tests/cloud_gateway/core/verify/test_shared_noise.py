"""Sampling with shared noise: the completion is the same whatever was drafted, and token by token the slow twin's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cloud_gateway.core.verify.accept import FlatTree, walk
from cloud_gateway.core.verify.shared_noise import Chooser, path_to
from edgespec.core.protocol.messages import Sampling
from tests.support.noise import gumbel_all
from tests.support.processed import probabilities, process

VOCAB = 16
PROMPT = [3, 1, 4]


class Model:
    """A target whose logits depend on the last two tokens; counts how many rows of logits were fetched."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.table = rng.normal(size=(VOCAB, VOCAB, VOCAB)).astype(np.float32) * 2
        self.fetched = 0

    def verify(self, committed: Sequence[int], flat: FlatTree) -> Rows:
        contexts = [(*committed, *path_to(flat, row)) for row in range(len(flat))]
        return Rows(self, [self.table[context[-2], context[-1]] for context in contexts])


class Rows:
    def __init__(self, model: Model, logits: list[np.ndarray]) -> None:
        self.model = model
        self.rows = logits
        self.argmax = [int(np.argmax(row)) for row in logits]

    def logits(self, row: int) -> np.ndarray:
        self.model.fetched += 1
        return self.rows[row]


Drafter = Callable[[Sequence[int]], FlatTree]


def alone(committed: Sequence[int]) -> FlatTree:
    return FlatTree([committed[-1]], [-1], [0])


def random_tree(rng: np.random.Generator) -> Drafter:
    def draft(committed: Sequence[int]) -> FlatTree:
        tokens = [committed[-1]]
        parents = [-1]
        depths = [0]
        for _ in range(int(rng.integers(0, 30))):
            parent = int(rng.integers(len(tokens)))
            token = int(rng.integers(VOCAB))
            if depths[parent] < 5 and (parent, token) not in zip(parents, tokens):
                tokens.append(token)
                parents.append(parent)
                depths.append(depths[parent] + 1)
        return FlatTree(tokens, parents, depths)

    return draft


def answer(model: Model, sampling: Sampling, drafter: Drafter, length: int) -> list[int]:
    chooser = Chooser(sampling, PROMPT)
    committed = list(PROMPT)
    while len(committed) < len(PROMPT) + length:
        flat = drafter(committed)
        tokens = walk(flat, chooser.at(flat, model.verify(committed, flat))).tokens
        chooser.committed(tokens)
        committed += tokens
    return committed[len(PROMPT) : len(PROMPT) + length]


rules = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    logit_bias=st.sampled_from([{}, {2: 3.0}]),
    seed=st.integers(0, 2**63 - 1),
)


@given(rules, st.integers(0, 2**32))
def test_the_answer_is_the_same_whatever_was_drafted(rule: Sampling, seed: int) -> None:
    model = Model()
    plain = answer(model, rule, alone, 12)
    assert answer(model, rule, random_tree(np.random.default_rng(seed)), 12) == plain


@given(rules)
def test_each_token_is_the_slow_twins(rule: Sampling) -> None:
    from edgespec.core.sampling.logits import History

    model = Model()
    tokens = answer(model, rule, alone, 6)
    for i, token in enumerate(tokens):
        context = PROMPT + tokens[:i]
        scores = process(model.table[context[-2], context[-1]], rule, History(PROMPT, tokens[:i]))
        if rule.temperature:
            scores = scores + gumbel_all(rule.seed or 0, len(context), VOCAB)
        assert token == int(np.argmax(scores))


def test_plain_greedy_fetches_no_logits() -> None:
    model = Model()
    answer(model, Sampling(), random_tree(np.random.default_rng(1)), 20)
    assert model.fetched == 0
    answer(model, Sampling(frequency_penalty=0.5), alone, 5)
    assert model.fetched == 5


def test_a_penalty_counts_the_tokens_of_the_path() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[7] = 1.0
    rows = Rows(Model(), [logits])
    chooser = Chooser(Sampling(presence_penalty=2.0), PROMPT)
    assert chooser.choose(rows, 0, []) == 7
    assert chooser.choose(rows, 0, [7]) == 0
    chooser.committed([7])
    assert chooser.choose(rows, 0, []) == 0


def test_frequencies_over_seeds_are_those_of_the_distribution() -> None:
    model = Model(3)
    n = 4000
    rule = Sampling(temperature=1.0)
    flat = alone(PROMPT)
    rows = model.verify(PROMPT, flat)
    counts = Counter(Chooser(replace(rule, seed=seed), PROMPT).choose(rows, 0, []) for seed in range(n))
    p = probabilities(Chooser(replace(rule, seed=0), PROMPT).candidates(rows, 0, []), VOCAB)
    expected = n * p
    observed = np.array([counts[v] for v in range(VOCAB)])
    big = expected > 5
    statistic = float(((observed - expected) ** 2 / expected)[big].sum())
    assert statistic < 45  # 15 degrees of freedom: p = 8e-5


def test_a_constraint_holds_at_every_node_and_sees_the_path() -> None:
    seen: list[list[int]] = []

    def even_after_odd(path: Sequence[int]) -> np.ndarray:
        seen.append(list(path))
        return np.arange(VOCAB) % 2 == len(path) % 2

    for temperature in (0.0, 1.0):
        model = Model()
        flat = FlatTree([4, 0, 2, 4, 6, 8, 10, 12, 14], [-1] + [0] * 8, [0] + [1] * 8)
        chooser = Chooser(Sampling(temperature=temperature, seed=5), PROMPT, even_after_odd)
        tokens = walk(flat, chooser.at(flat, model.verify(PROMPT, flat))).tokens
        assert [token % 2 for token in tokens] == [0, 1]
    assert seen[0] == [] and len(seen[1]) == 1


def test_noise_without_a_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a seed"):
        Chooser(Sampling(temperature=1.0), PROMPT)
    Chooser(Sampling(), PROMPT)
