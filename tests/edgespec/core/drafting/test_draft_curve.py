"""The reported curve: honest about the latest steps, bounded, and not sent more often than it changes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.drafting.together import CHANGE, MAX_FACTOR, REMEMBERED, REPORT_EVERY_S, DraftCurve
from edgespec.core.protocol.messages import MAX_MICROS, MAX_POINTS, step_curve

MEASURED = {1: 0.006, 4: 0.012, 16: 0.030}


def test_it_begins_as_measured_and_interpolates() -> None:
    curve = DraftCurve(MEASURED)
    assert [curve(leaves) for leaves in (1, 2, 16, 32)] == pytest.approx([0.006, 0.008, 0.030, 0.030])
    assert curve.changed(0.0) is None


def test_one_starved_step_is_reported_at_once_and_forgotten_in_time() -> None:
    curve = DraftCurve(MEASURED)
    for _ in range(REMEMBERED):
        curve.sample(1, 0.006)
    curve.sample(4, 0.120)
    report = curve.changed(1.0)
    assert report is not None and report.leaves == [1, 4, 16]
    assert report.micros[0] == pytest.approx(6000 * (REMEMBERED - 1 + 10) / REMEMBERED, abs=1)
    for _ in range(REMEMBERED):
        curve.sample(1, 0.006)
    back = curve.changed(2.0)
    assert back is not None and back.micros == [6000, 12_000, 30_000]


def test_small_changes_and_quick_ones_are_not_sent() -> None:
    curve = DraftCurve(MEASURED)
    for _ in range(REMEMBERED):
        curve.sample(1, 0.006 * (1 + CHANGE) * 0.99)
    assert curve.changed(1.0) is None
    curve.sample(1, 0.060)
    assert curve.changed(1.0) is not None
    curve.sample(1, 0.200)
    assert curve.changed(1.0 + REPORT_EVERY_S * 0.9) is None
    assert curve.changed(1.0 + REPORT_EVERY_S) is not None


@given(st.lists(st.tuples(st.integers(1, 32), st.floats(0, 1e9)), max_size=20))
def test_any_times_give_a_report_that_the_wire_takes(steps: list[tuple[int, float]]) -> None:
    curve = DraftCurve(MEASURED)
    for leaves, seconds in steps:
        curve.sample(leaves, seconds)
    assert math.isfinite(curve(1)) and 0 < curve(1) <= MEASURED[1] * MAX_FACTOR * 1.001
    assert all(0 < seconds <= MAX_MICROS / 1e6 for _, seconds in step_curve(curve.report()))


@pytest.mark.parametrize("points", [{2: 1.0}, {}, dict.fromkeys(range(1, MAX_POINTS + 2), 1.0), {1: 1.0, 2000: 1.0}])
def test_what_the_wire_would_refuse_is_no_curve(points: dict[int, float]) -> None:
    with pytest.raises(ValueError):
        DraftCurve(points)
