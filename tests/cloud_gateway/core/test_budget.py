"""Prices, and the bucket of local passes."""

from __future__ import annotations

import pytest

from cloud_gateway.core.actions import Costs, LinkView
from cloud_gateway.core.budget import BURST, Budget, Prices

COSTS = Costs(lambda rows: 0.01034, 0.00373)


def prices(rtt_s: float | None, *, free: bool = False) -> Prices:
    link = None if rtt_s is None else LinkView(rtt_s, rtt_s, 0.00373, ready=True)
    return Prices.of(link, COSTS, 0.8, 0.965, 0.07, free=free)


def test_the_reference_is_colocated_k_2() -> None:
    assert prices(0.02).reference_s == pytest.approx((2 * 0.00373 + 0.01034) / 2.44)
    assert prices(0.02).reference_passes == pytest.approx(2 / 2.44)


def test_a_bad_draft_makes_plain_decoding_the_reference() -> None:
    assert Prices.of(None, COSTS, 0.1, 0.3, 0.07, free=False).reference_s == 0.01034


def test_a_pass_is_dearer_the_longer_the_round_trip() -> None:
    assert prices(0.02).pass_s < prices(0.05).pass_s < prices(0.1).pass_s <= prices(None).pass_s
    assert prices(0.05, free=True).pass_s == 0


def test_without_a_local_draft_there_is_nothing_to_price() -> None:
    assert Prices.of(None, Costs(lambda rows: 0.01), 0.8, 0.96, 0.07, free=False).reference_s == 0.01


def test_a_bucket_empties_in_a_burst_and_refills_before_the_next() -> None:
    budget, price = Budget(0.5), prices(0.05)
    budget.earn(1000)  # far ahead of the reference: speed asks for nothing
    assert budget.allows(price, 0.0)
    for _ in range(int(BURST) + 1):
        budget.spend()
    assert not budget.allows(price, 0.1), "empty"
    budget.earn(5)
    assert not budget.allows(price, 0.1), "not yet half full"
    budget.earn(20)
    assert budget.allows(price, 0.1)


def test_an_answer_behind_the_reference_may_draft_whatever_the_share() -> None:
    budget, slow = Budget(0.0), prices(0.2)
    budget.allows(slow, 0.0)
    budget.earn(10)
    assert budget.allows(slow, 1.0)
    budget.earn(1000)
    assert not budget.allows(slow, 1.0)


def test_a_short_lag_is_borne_where_the_worker_will_make_it_good() -> None:
    budget = Budget(0.0)
    budget.allows(prices(0.01), 0.0)
    assert not budget.allows(prices(0.01), 0.03)
    assert budget.allows(prices(0.2), 0.03)
