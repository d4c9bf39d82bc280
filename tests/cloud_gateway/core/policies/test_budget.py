"""Prices, and the bucket of local passes."""

from __future__ import annotations

import math

import pytest

from cloud_gateway.core.policies.actions import Costs, LinkView
from cloud_gateway.core.policies.budget import BURST, Acceptance, Budget, LocalRun, Prices, Reference
from edgespec.core.protocol.messages import MAX_DEPTH

TT, TD = 0.01034, 0.00373
COSTS = Costs(lambda rows: TT, TD)
DRAFT = Acceptance(match=0.8, named=0.965, losses=0.07)
REFERENCE = Reference.of(COSTS, DRAFT.match)
SLOW, QUICK = 0.012, 0.0045


def link(rtt_s: float) -> LinkView:
    return LinkView(rtt_s, rtt_s, TD, ready=True)


def scarce(rtt_s: float | None, draft: Acceptance = DRAFT, *, hurry: bool = False) -> Prices:
    there = None if rtt_s is None else link(rtt_s)
    return Prices.scarce(there, COSTS, draft, Reference.of(COSTS, draft.match), hurry=hurry)


def test_the_reference_is_colocated_k_2() -> None:
    assert REFERENCE.token_s == pytest.approx((2 * TD + TT) / 2.44)
    assert REFERENCE.passes == pytest.approx(2 / 2.44)


def test_a_bad_draft_or_none_makes_plain_decoding_the_reference() -> None:
    assert Reference.of(COSTS, 0.1).token_s == TT
    assert Reference.of(Costs(lambda rows: TT), 0.8).token_s == TT


def test_a_pass_is_dearer_the_longer_the_round_trip() -> None:
    assert scarce(0.02).pass_s < scarce(0.05).pass_s < scarce(0.1).pass_s <= scarce(None).pass_s
    assert Prices.of(link(0.05), COSTS, DRAFT).pass_s == 0


def test_without_a_local_draft_there_is_nothing_to_price() -> None:
    prices = Prices.scarce(None, Costs(lambda rows: TT), DRAFT, REFERENCE, hurry=True)
    assert (prices.token_s, prices.pass_s, prices.local_s) == (TT, 0.0, math.inf)


def test_an_answer_in_a_hurry_drafts_as_fast_as_the_reference_at_least() -> None:
    sure = Acceptance(match=0.97, named=0.99, losses=0.07)
    calm, hurried = scarce(None, sure), scarce(None, sure, hurry=True)
    assert calm.local_s > Reference.of(COSTS, sure.match).token_s > hurried.local_s
    assert hurried.pass_s < calm.pass_s


def test_a_run_over_few_leaves_pays_less_than_over_many() -> None:
    one, many = (LocalRun.all(Costs(lambda rows: TT, TD, local_leaves=leaves), DRAFT) for leaves in (1, 16))
    assert one[0].tokens == many[0].tokens == 1 + DRAFT.named
    assert all(a.tokens < b.tokens for a, b in zip(one[1:], many[1:]))


def test_a_worker_gets_no_further_ahead_than_the_protocol_lets_it() -> None:
    sure = Acceptance(match=0.97, named=0.999, losses=0.0)
    assert scarce(0.02, sure).token_s == TD
    assert scarce(0.5, sure).token_s > 0.5 / MAX_DEPTH


def test_a_bucket_empties_in_a_burst_and_refills_before_the_next() -> None:
    budget = Budget(0.5)
    budget.look(REFERENCE, SLOW, 0.0)
    budget.earn(1000, REFERENCE)  # far ahead of the reference: speed asks for nothing
    budget.look(REFERENCE, SLOW, 0.0)
    assert budget.spending and not budget.behind
    for _ in range(int(BURST) + 1):
        budget.spend()
    budget.look(REFERENCE, SLOW, 0.1)
    assert not budget.open, "empty"
    budget.earn(5, REFERENCE)
    budget.look(REFERENCE, SLOW, 0.1)
    assert not budget.open, "not yet half full"
    budget.earn(20, REFERENCE)
    budget.look(REFERENCE, SLOW, 0.1)
    assert budget.open


def test_an_answer_behind_the_reference_may_draft_whatever_the_share() -> None:
    budget = Budget(0.0)
    budget.look(REFERENCE, SLOW, 0.0)
    budget.earn(10, REFERENCE)
    budget.look(REFERENCE, SLOW, 1.0)
    assert budget.open
    budget.earn(1000, REFERENCE)
    budget.look(REFERENCE, SLOW, 1.0)
    assert not budget.open


def test_a_short_lag_is_borne_where_the_worker_will_make_it_good() -> None:
    budget = Budget(0.0)
    budget.look(REFERENCE, QUICK, 0.0)
    budget.look(REFERENCE, QUICK, 0.03)
    assert not budget.open
    budget.look(REFERENCE, SLOW, 0.03)
    assert budget.open
