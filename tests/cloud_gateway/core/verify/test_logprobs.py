"""Log-probabilities of single tokens, of ordinary rows and of extreme ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cloud_gateway.core.verify.accept import token_logprob


def test_they_are_those_of_the_softmax_best_first() -> None:
    found = token_logprob(np.log(np.array([0.2, 0.5, 0.3], np.float32)), 2, 2)
    assert found.logprob == pytest.approx(math.log(0.3), rel=1e-6)
    assert [token for token, _ in found.top] == [1, 2]


@pytest.mark.parametrize(
    "row",
    [[np.inf, 0, 1], [np.inf, np.inf, 1], [-np.inf] * 3, [-np.inf, 1, 2], [3.4e38, -3.4e38, 0], [0, 0, 0]],
    ids=str,
)
def test_of_any_row_they_are_numbers_that_json_has(row: list[float]) -> None:
    for token in range(3):
        found = token_logprob(np.array(row, np.float32), token, 3)
        values = [found.logprob, *(value for _, value in found.top)]
        assert all(math.isfinite(value) and value <= 1e-9 for value in values)
        assert sum(math.exp(value) for _, value in found.top) == pytest.approx(1)
