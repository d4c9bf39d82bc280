"""The reference, and the budget of passes."""

from __future__ import annotations

import pytest

from cloud_gateway.core.policies.completion import Budget
from cloud_gateway.core.policies.guard import Reference
from cloud_gateway.core.policies.policy import Costs
from cloud_gateway.core.policies.tuning import TUNING

TT, TD = 0.01034, 0.00373
COSTS = Costs(lambda rows: TT, TD)


def test_the_reference_is_colocated_decoding_with_k_2_or_plain_decoding() -> None:
    assert Reference.of(COSTS, 0.8).token_s == pytest.approx((TT + 2 * TD) / 2.44)
    assert Reference.of(COSTS, 0.8).passes == pytest.approx(2 / 2.44)
    assert Reference.of(Costs(lambda rows: TT), 0.8).token_s == TT
    assert Reference.of(Costs(lambda rows: TT, 2 * TT), 0.8).token_s == TT, "drafts would take longer"


def test_others_that_share_the_passes_do_the_same_and_are_waited_for() -> None:
    busy = Costs(lambda rows: TT * rows**0.5, TD, sharers=3)
    assert Reference.of(busy, 0.8).together_s == pytest.approx((12**0.5 * TT + 8 * TD) / 2.44)
    assert Reference.of(busy, 0.8).plain_s == 2 * TT


@pytest.mark.parametrize("run", [1, 5])
def test_runs_may_overdraw_and_passes_keep_to_the_share(run: int) -> None:
    budget, made = Budget("balanced", TUNING), 0
    for _ in range(400):
        for _ in range(run if budget.open else 0):
            budget.spend()
            made += 1
        budget.earn(0.8)
    assert made == pytest.approx(TUNING.share * 0.8 * 400, abs=run)


def test_a_shared_pass_counts_by_its_share_and_one_not_made_not_at_all() -> None:
    budget = Budget("balanced", TUNING)
    budget.earn(1 / TUNING.share)
    for _ in range(4):
        assert budget.open
        budget.spend()
        budget.give_back()
        budget.spend(1 / 4)
    assert not budget.open
