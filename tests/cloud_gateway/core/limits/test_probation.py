"""Probation: what leads to it, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_gateway.core.limits.probation import FIRST_S, FORGIVEN_S, MAX_S, Probation


def test_one_end_and_regular_restarts_cost_nothing() -> None:
    probation = Probation()
    for restart in range(50):
        probation.ended("w", restart * FORGIVEN_S, by_its_fault=False)
        assert probation.length_s("w", restart * FORGIVEN_S + 0.1) == 0


def test_a_fault_costs_a_probation_that_is_forgiven_in_time() -> None:
    probation = Probation()
    probation.ended("w", 100.0, by_its_fault=True)
    assert FIRST_S <= probation.length_s("w", 100.5) < 2 * FIRST_S
    assert probation.length_s("other", 100.5) == 0
    assert probation.length_s("w", 100.0 + 3 * FORGIVEN_S) == 0


@pytest.mark.claim("a-worker-that-was-cut-off-for-its-fault-is-on-probation")
def test_quick_ends_again_and_again_cost_ever_more_up_to_a_limit() -> None:
    probation = Probation()
    lengths = []
    for n in range(60):
        probation.ended("w", n * 1.0, by_its_fault=False)
        lengths.append(probation.length_s("w", n * 1.0))
    assert lengths[0] == lengths[1] == 0 < lengths[4] and lengths == sorted(lengths) and lengths[-1] == MAX_S


@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), max_size=40))
def test_lengths_stay_within_their_bounds(ends: list[tuple[float, bool]]) -> None:
    probation = Probation()
    now = 0.0
    for gap, fault in ends:
        now += gap
        probation.ended("w", now, by_its_fault=fault)
        length = probation.length_s("w", now)
        assert length == 0 or FIRST_S <= length <= MAX_S
