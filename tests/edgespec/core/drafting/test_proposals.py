"""Ranking of a row of logits, against sorting all of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.drafting.ranking import best_children, largest


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
