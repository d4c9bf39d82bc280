"""Log-probabilities of rows: those of the softmax, and of any row numbers that JSON has."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cloud_gateway.parts.log_probabilities import rows
from cloud_gateway.parts.log_probabilities.rows import LogprobReader, RowLogprobs
from tools.parts.log_probabilities import check_reading

ANY = [[np.inf, 0, 1], [np.inf, np.inf, 1], [-np.inf] * 3, [-np.inf, 1, 2], [3.4e38, -3.4e38, 0], [0, 0, 0]]


def test_they_are_those_of_the_softmax_best_first() -> None:
    logits = np.log(np.array([0.2, 0.5, 0.3], np.float32))
    found = LogprobReader(2).read(logits, 2)
    assert found.logprob == pytest.approx(math.log(0.3), rel=1e-6)
    assert [token for token, _ in found.top] == [1, 2]
    assert LogprobReader(0).read(logits, 2).top == ()


def test_of_equals_the_lower_token_comes_first() -> None:
    found = LogprobReader(2).read(np.array([1, 3, 3, 3], np.float32), 0)
    assert [token for token, _ in found.top] == [1, 2]


@pytest.mark.parametrize("row", ANY, ids=str)
def test_of_any_row_they_are_numbers_that_json_has(row: list[float]) -> None:
    for token in range(3):
        found = LogprobReader(3).read(np.array(row, np.float32), token)
        values = [found.logprob, *(value for _, value in found.top)]
        assert all(math.isfinite(value) and value <= 1e-9 for value in values)
        assert sum(math.exp(value) for _, value in found.top) == pytest.approx(1)


def test_a_row_that_is_read_stays_as_it_is() -> None:
    row = np.array([1, np.inf, 3], np.float32)
    LogprobReader(3).read(row, 1)
    assert row.tolist() == [1, np.inf, 3]


def test_an_engine_without_rows_gives_the_same() -> None:
    best = [(7, -2.0), (3, -0.5), (5, -2.0)]
    assert LogprobReader(2).read_best(-4.0, best) == RowLogprobs(-4.0, ((3, -0.5), (5, -2.0)))


@pytest.mark.filterwarnings("ignore:invalid value")
def test_infinities_that_are_let_in_are_found_by_the_fuzz_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    row = np.array(ANY[0], np.float32)
    check_reading(LogprobReader(3).read(row, 1))
    monkeypatch.setattr(rows, "finite", lambda logits: logits)
    with pytest.raises(AssertionError, match="log-probabilities"):
        check_reading(LogprobReader(3).read(row, 1))
