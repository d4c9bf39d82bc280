"""The worker's ranking of a row of logits: the target's own rule, costs as probabilities, an estimated spread."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.drafting.ranking import Ranker, Spread, best_children, largest
from edgespec.core.protocol.messages import MAX_COST, Sampling
from edgespec.core.sampling.logits import History
from tests.support.noise import gumbel_all
from tests.support.processed import process

VOCAB = 3000
PROMPT = [5, 6, 7]


def some_logits(seed: int, n: int = VOCAB) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=n) * 3).astype(np.float32)


rules = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.4, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 40]),
    top_p=st.sampled_from([0.8, 1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    seed=st.one_of(st.none(), st.integers(0, 2**63 - 1)),
)
paths = st.lists(st.integers(0, VOCAB - 1), max_size=4)


@given(rules, paths, paths, st.integers(0, 2**32))
def test_the_first_proposal_is_the_targets_choice_for_equal_logits(
    rule: Sampling, answer: list[int], path: list[int], seed: int
) -> None:
    logits = some_logits(seed)
    ranker = Ranker(rule, PROMPT)
    ranker.committed(answer)
    scores = process(logits, rule, History(PROMPT, answer), path)
    if rule.temperature and rule.seed is not None:
        scores = scores + gumbel_all(rule.seed, len(PROMPT) + len(answer) + len(path), VOCAB)
    assert ranker(logits, path, 3).tokens[0] == int(np.argmax(scores))


@given(rules, st.integers(0, 2**32), st.sampled_from([0.05, 0.5, 1.4]))
def test_prices_are_those_of_the_slow_softmax_over_noisy_scores(rule: Sampling, seed: int, spread: float) -> None:
    logits = some_logits(seed)
    found = Ranker(rule, PROMPT, spread=Spread(spread))(logits, [], 4)
    if rule.temperature == 0:
        scores = process(logits, Sampling(1.0, repetition_penalty=rule.repetition_penalty), History(PROMPT)) / spread
    else:
        scores = process(logits, rule, History(PROMPT))
        if rule.seed is not None:
            scores = (scores + gumbel_all(rule.seed, len(PROMPT), VOCAB)) * rule.temperature / spread
    order = np.argsort(-scores, kind="stable")[: len(found.tokens)]
    assert found.tokens == order.tolist()
    shifted = scores - scores.max()
    prices = np.minimum(np.log(np.exp(shifted).sum()) - shifted[order], MAX_COST / 1000)  # what a frame can carry
    np.testing.assert_allclose(found.costs, prices, atol=2e-3, rtol=1e-6)
    assert all(cost >= 0 for cost in found.costs) and found.costs == sorted(found.costs)


def test_a_spread_of_one_gives_a_greedy_request_the_papers_costs() -> None:
    logits = some_logits(2)
    found = Ranker(Sampling(), PROMPT, spread=Spread(1.0))(logits, [], 5)
    q = np.exp(logits.astype(np.float64) - logits.max())
    q /= q.sum()
    np.testing.assert_allclose(np.exp(-np.array(found.costs)), np.sort(q)[::-1][:5], rtol=1e-4)
    assert found.entropy == pytest.approx(-float(q @ np.log(q)), rel=1e-6)


def test_fewer_proposals_are_returned_where_fewer_tokens_are_possible() -> None:
    assert len(Ranker(Sampling(temperature=1.0, top_k=2, seed=1), PROMPT)(some_logits(3), [], 8).tokens) == 2
    assert (
        len(Ranker(Sampling(temperature=1.0, seed=1), PROMPT, spread=Spread(0.05))(some_logits(3), [], 8).tokens) == 8
    )


def test_the_resolved_entropy_is_low_where_the_noise_has_decided() -> None:
    rule = Sampling(temperature=1.0, seed=3)
    flat = np.zeros(VOCAB, np.float32)
    assert Ranker(rule, PROMPT)(flat, [], 1).entropy == pytest.approx(math.log(VOCAB))
    assert Ranker(rule, PROMPT, spread=Spread(0.05), resolved=True)(flat, [], 1).entropy < 0.5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("true_spread", [0.1, 0.5, 1.0])
def test_the_spread_is_learned_from_what_the_target_chose(true_spread: float, temperature: float) -> None:
    rng = np.random.default_rng(4)
    ranker = Ranker(Sampling(temperature=temperature, seed=9), PROMPT)
    for i in range(400):
        draft = (rng.normal(size=200) * 2).astype(np.float32)
        target = draft + true_spread * rng.gumbel(size=200)
        ranker(draft, [], 4)
        ranker.committed([int(np.argmax(target + temperature * gumbel_all(9, len(PROMPT) + i, 200)))])
    grid = Spread.GRID.tolist()
    assert abs(grid.index(ranker.spread.value) - grid.index(true_spread)) <= 1


def test_it_learns_from_the_rows_along_a_commit_and_keeps_those_below_it() -> None:
    observed: list[int | None] = []

    class Watched(Spread):
        def observe(self, scores: np.ndarray, chosen: int | None) -> None:
            observed.append(chosen)

    ranker = Ranker(Sampling(), PROMPT, spread=Watched())
    rows = {(): 10, (1,): 11, (1, 2): 12, (9,): 13}
    ranked = {path: ranker(some_logits(seed), path, 4).tokens for path, seed in rows.items()}
    ranker.committed([1])
    assert observed == [ranked[()].index(1) if 1 in ranked[()] else None]
    ranker.committed([2, ranked[1, 2][0]])
    assert len(observed) == 3 and observed[2] == 0


ROWS = {
    "infinite": [math.inf, 0.0, -math.inf, 5.0],
    "all removed": [-math.inf] * 4,
    "two infinite": [math.inf, math.inf, 1.0, 2.0],
    "not a number": [1.0, math.nan, 2.0, 3.0],
    "huge": [3.4e38, -3.4e38, 1e38, 0.0],
    "equal": [0.0] * 4,
}


@pytest.mark.claim("any-logits-give-finite-costs-and-leave-the-spread-finite")
@pytest.mark.parametrize("rule", [
    Sampling(), Sampling(repetition_penalty=0.01), Sampling(temperature=2.0, seed=3, repetition_penalty=10.0),
    Sampling(temperature=1e-5, seed=3, logit_bias={0: 100.0}), Sampling(temperature=0.7, top_p=5e-324, min_p=5e-324),
])  # fmt: skip
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_any_logits_give_finite_costs_and_leave_the_spread_finite(rule: Sampling, row: list[float]) -> None:
    spread = Spread()
    logits = np.array(row * 8, np.float32)
    for resolved in (True, False):
        ranker = Ranker(rule, [1, 2], spread=spread, resolved=resolved)
        for _ in range(3):
            found = ranker(logits, [], 4)
            assert len(set(found.tokens)) == len(found.tokens) >= 1
            assert all(0 <= cost <= MAX_COST / 1000 for cost in found.costs)
            assert 0 <= found.entropy <= math.log(len(logits)) + 1e-6
            ranker.committed([found.tokens[-1]])
    assert np.isfinite(spread._loss).all()


def test_scores_that_are_no_numbers_teach_the_spread_nothing() -> None:
    spread = Spread()
    scores = np.array([2.0, 1.0, -math.inf])
    for _ in range(50):
        for bad in (math.nan, math.inf):
            spread.observe(np.array([bad, 1.0]), 0)
        spread.observe(np.full(3, -math.inf), None)
    assert spread.value == Spread().value
    for _ in range(300):
        spread.observe(scores, 0)
    assert np.isfinite(spread._loss).all() and spread.value < Spread.START, "an honest observation counts"


def test_a_prompt_in_parts_counts_for_repetition_only() -> None:
    rule = Sampling(repetition_penalty=2.0, presence_penalty=5.0)
    logits = np.array([4.0, 3.0, 1.0], np.float32)
    ranker = Ranker(rule, [])
    ranker.committed([0], answer=False)
    assert ranker(logits, [], 3).tokens == [1, 0, 2]
    ranker.committed([1])
    assert ranker(logits, [], 3).tokens == [0, 2, 1]


@given(
    st.integers(1, 5000),
    st.integers(1, 40),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 7, 1000]),  # few distinct scores make ties
)
def test_largest_equals_a_full_sort_also_where_scores_tie(size: int, count: int, seed: int, levels: int) -> None:
    scores = np.random.default_rng(seed).integers(0, levels, size).astype(np.float32)
    expected = np.argsort(-scores, kind="stable")[:count]
    assert largest(scores, count).tolist() == expected.tolist()


@pytest.mark.parametrize("size", [5, 64, 49152])
def test_costs_and_entropy_are_those_of_the_softmax(size: int) -> None:
    logits = (np.random.default_rng(1).standard_normal(size) * 4 + 30).astype(np.float32)
    wide = logits.astype(np.float64)
    log_probabilities = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    proposal = best_children(logits, (), 3)
    assert proposal.tokens == np.argsort(-logits)[:3].tolist()
    np.testing.assert_allclose(proposal.costs, -log_probabilities[proposal.tokens], atol=1e-4)
    assert proposal.entropy == pytest.approx(-(np.exp(log_probabilities) * log_probabilities).sum(), abs=1e-4)


def test_a_certain_row_has_no_entropy_and_a_flat_one_has_all() -> None:
    certain = np.full(1000, -1e4, np.float32)
    certain[17] = 50
    assert best_children(certain, (), 1) == best_children(certain, (5,), 1)
    assert best_children(certain, (), 1).tokens == [17]
    assert best_children(certain, (), 1).entropy == pytest.approx(0, abs=1e-6)
    assert best_children(np.zeros(1000, np.float32), (), 4).entropy == pytest.approx(np.log(1000), abs=1e-5)
    assert best_children(np.zeros(1000, np.float32), (), 4).tokens == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "row", [[np.inf, 0, 1], [-np.inf] * 3, [-np.inf, 2, 1], [3.4e38, -3.4e38, 0], [np.nan, 1, 2]], ids=str
)
def test_any_row_of_numbers_gives_finite_costs(row: list[float]) -> None:
    found = best_children(np.array(row, np.float32), (), 3)
    assert sorted(found.tokens) == [0, 1, 2] and found.tokens[0] == int(np.nanargmax(row))
    assert np.isfinite(found.costs).all() and 0 <= found.entropy <= np.log(3) + 1e-6
