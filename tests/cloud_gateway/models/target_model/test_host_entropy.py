"""The entropy of a row on the host, against its slow twin and the sum in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cloud_gateway.models.target_model.llamacpp_rows import LlamaCppVerified
from cloud_gateway.models.target_model.slots import (
    DOT_LENGTH,
    MAX_DIRECT_LOGIT,
    MIN_DIRECT_LOGIT,
    HostEntropy,
    entropy_on_host,
)

MAX_ERROR = 1e-3
"""Nats."""
SIZES = [1, 2, 1000, DOT_LENGTH, DOT_LENGTH + 1, 49_152, 128_256]


def exact(scores: NDArray[np.float32]) -> float:
    """In float64, logits of minus infinity left out."""
    logits = scores[scores > -math.inf].astype(np.float64)
    below = logits - logits.max()
    weights = np.exp(below)
    return math.log(weights.sum()) - float((weights * below).sum() / weights.sum())


def row(size: int, seed: int, spread: float, best: float) -> NDArray[np.float32]:
    """Normal logits whose largest is `best`."""
    scores = np.random.default_rng(seed).normal(0, spread, size)
    return (scores - scores.max() + best).astype(np.float32)


@given(
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 2**31),
    spread=st.floats(0.01, 10),
    best=st.floats(-300, 300),
    removed=st.integers(0, 3),
)
def test_the_fast_entropy_is_that_of_its_slow_twin(
    size: int, seed: int, spread: float, best: float, removed: int
) -> None:
    scores = row(size, seed, spread, best)
    index = int(scores.argmax())
    for number in range(min(removed, size)):
        scores[number] = scores[number] if number == index else -math.inf
    found = HostEntropy()(scores, index)
    assert found == pytest.approx(entropy_on_host(scores), abs=MAX_ERROR)
    assert found == pytest.approx(exact(scores), abs=MAX_ERROR)


@pytest.mark.parametrize("best", [MIN_DIRECT_LOGIT + 0.1, -1.0, 20.0, MAX_DIRECT_LOGIT - 0.1])
def test_equal_logits_have_the_entropy_of_the_vocabulary(best: float) -> None:
    assert HostEntropy()(np.full(262_144, best, np.float32), 0) == pytest.approx(math.log(262_144), abs=MAX_ERROR)


def test_rows_of_changing_length_share_the_memory_and_no_result() -> None:
    entropy = HostEntropy()
    rows = [row(size, size, 3.0, 12.0) for size in (49_152, 1000, 128_256, 1000)]
    found = [entropy(scores, int(scores.argmax())) for scores in rows]
    assert found == pytest.approx([exact(scores) for scores in rows], abs=MAX_ERROR)
    assert len(entropy._weights) == 128_256


def test_a_targets_row_is_summed_with_the_memory_of_its_target() -> None:
    entropy = HostEntropy()
    scores = np.stack([row(1000, seed, 2.0, 9.0) for seed in range(3)])
    found = LlamaCppVerified(scores, lambda: True, entropy)
    assert [found.entropy(i) for i in range(3)] == pytest.approx([exact(one) for one in scores], abs=MAX_ERROR)
    assert len(entropy._weights) == 1000, "the fast sum was used"
