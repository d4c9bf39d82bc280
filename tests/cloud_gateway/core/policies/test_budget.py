"""The answer's reference, its budget of passes and the guard."""

from __future__ import annotations

from itertools import pairwise

import pytest

from cloud_gateway.core.policies.actions import Costs
from cloud_gateway.core.policies.budget import BURST, Budget, Lead, Reference, worker_pace

TT, TD = 0.01034, 0.00373
COSTS = Costs(lambda rows: TT, TD)
REFERENCE = Reference.of(COSTS, 0.8)


def test_the_reference_is_colocated_decoding_with_k_2() -> None:
    assert REFERENCE.token_s == pytest.approx((TT + 2 * TD) / 2.44)
    assert REFERENCE.passes == pytest.approx(2 / 2.44)


@pytest.mark.parametrize("costs", [Costs(lambda rows: TT), Costs(lambda rows: TT, 2 * TT)])
def test_it_is_plain_decoding_where_that_is_faster(costs: Costs) -> None:
    assert Reference.of(costs, 0.8).token_s == TT


def test_the_rows_of_others_make_both_slower() -> None:
    busy = Costs(lambda rows: TT * rows, TD, other_rows=9)
    assert Reference.of(busy, 0.8).token_s == pytest.approx((12 * TT + 2 * TD) / 2.44)


def test_passes_are_saved_up_and_spent_in_bursts() -> None:
    budget = Budget(0.5)
    made = []
    for _ in range(400):
        made.append(budget.open)
        if made[-1]:
            budget.spend()
        budget.earn(1, REFERENCE)
    assert sum(made) == pytest.approx(0.5 * REFERENCE.passes * 400, abs=BURST)
    switches = sum(a != b for a, b in pairwise(made))
    assert switches < sum(made) / 3, "bursts, not a trickle"


def test_without_a_share_no_run_begins() -> None:
    budget = Budget(0.0)
    budget.earn(1000, REFERENCE)
    assert not budget.open


def lead(seconds: float, tokens: int) -> Lead:
    found = Lead()
    found.look(5.0)
    found.emitted(tokens, REFERENCE)
    found.look(5.0 + seconds)
    return found


def test_an_answer_is_behind_where_it_would_end_behind() -> None:
    late = 10 * REFERENCE.token_s + 0.01
    assert lead(late, 10).judge(REFERENCE, REFERENCE.token_s, 100), "nothing is gained on the way"
    assert not lead(late, 10).judge(REFERENCE, 0.9 * REFERENCE.token_s, 100), "the rest makes up for it"
    assert lead(late, 10).judge(REFERENCE, 0.9 * REFERENCE.token_s, 5), "too few are left"


def test_once_behind_it_stays_so_until_it_has_caught_up() -> None:
    found = lead(10 * REFERENCE.token_s + 0.01, 10)
    assert found.judge(REFERENCE, REFERENCE.token_s, 5)
    assert found.judge(REFERENCE, 0.5 * REFERENCE.token_s, 100), "not yet"
    found.emitted(10, REFERENCE)
    found.look(5.0 + 15 * REFERENCE.token_s)
    assert not found.judge(REFERENCE, REFERENCE.token_s, 5)


def test_a_worker_costs_a_recovery_for_each_divergence() -> None:
    assert worker_pace(0.006, 0.030, 0.9, 0.1) == pytest.approx(0.009)
    assert worker_pace(0.006, 0.300, 0.5, 0.1) == 0.1, "plain decoding goes on meanwhile"
