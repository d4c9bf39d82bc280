"""The answer's reference and its budget of passes."""

from __future__ import annotations

import pytest

from cloud_gateway.core.policies.actions import Costs
from cloud_gateway.core.policies.budget import Budget, Reference

TT, TD = 0.01034, 0.00373
COSTS = Costs(lambda rows: TT, TD)
REFERENCE = Reference.of(COSTS, 0.8)


def test_the_reference_is_colocated_decoding_with_k_2() -> None:
    assert REFERENCE.token_s == pytest.approx((TT + 2 * TD) / 2.44)
    assert REFERENCE.passes == pytest.approx(2 / 2.44)


@pytest.mark.parametrize("costs", [Costs(lambda rows: TT), Costs(lambda rows: TT, 2 * TT)])
def test_it_is_plain_decoding_where_that_is_faster(costs: Costs) -> None:
    assert Reference.of(costs, 0.8).token_s == TT


def test_others_that_share_the_passes_do_the_same_and_are_waited_for() -> None:
    busy = Costs(lambda rows: TT * rows**0.5, TD, sharers=3)
    assert Reference.of(busy, 0.8).together_s == pytest.approx((12**0.5 * TT + 8 * TD) / 2.44)
    assert Reference.of(busy, 0.8).plain_s == 2 * TT


@pytest.mark.parametrize("run", [1, 5])
def test_runs_may_overdraw_and_passes_keep_to_the_share(run: int) -> None:
    budget, made = Budget(0.5), 0
    for _ in range(400):
        for _ in range(run if budget.open else 0):
            budget.spend()
            made += 1
        budget.earn(1, REFERENCE)
    assert made == pytest.approx(0.5 * REFERENCE.passes * 400, abs=run)


def test_without_a_share_no_run_begins() -> None:
    budget = Budget(0.0)
    budget.earn(1000, REFERENCE)
    assert not budget.open
