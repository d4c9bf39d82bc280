"""Running estimates: what they say after which samples."""

from __future__ import annotations

import math

import pytest

from cloud_gateway.core.policies.estimators import (
    MAX_S,
    PROBE_EVERY,
    RELIEF_EVERY,
    Ewma,
    Latest,
    RttEstimator,
    StepClock,
    StepCurve,
)
from cloud_gateway.core.policies.policy import Costs
from cloud_gateway.core.policies.worth import Prices
from edgespec.core.numbers import interpolate


def test_the_first_round_trip_is_taken_whole_later_ones_by_an_eighth() -> None:
    rtt = RttEstimator()
    assert rtt.srtt_s is None
    rtt.sample(0.080)
    assert (rtt.srtt_s, rtt.var_s, rtt.high_s) == (0.080, 0.040, pytest.approx(0.240))
    rtt.sample(0.040)
    assert rtt.srtt_s == pytest.approx(0.075)
    assert rtt.var_s == pytest.approx(0.040), "the deviation of 0.040 equals the variation so far"


def test_the_first_samples_of_a_mean_count_fully() -> None:
    mean = Ewma(weight=0.1)
    assert mean.value is None
    for value in (1.0, 3.0):
        mean.sample(value)
    assert mean.value == pytest.approx(2.0)
    for _ in range(100):
        mean.sample(5.0)
    assert mean.value == pytest.approx(5.0, rel=0.01)


def test_a_step_curve_is_linear_between_what_was_seen_and_level_beyond() -> None:
    curve = StepCurve({1: 0.02})
    assert curve(8) == 0.02
    curve.sample(1, 0.02)
    curve.sample(5, 0.04)
    assert [curve(rows) for rows in (1, 3, 5, 9)] == pytest.approx([0.02, 0.03, 0.04, 0.04])


def test_points_not_seen_yet_are_scaled_as_those_that_were() -> None:
    curve = StepCurve({1: 0.02, 4: 0.03, 16: 0.08})
    curve.sample(1, 0.04)  # other jobs: twice as long
    assert [curve(rows) for rows in (1, 4, 16)] == pytest.approx([0.04, 0.06, 0.16])
    curve.sample(4, 0.05)
    assert curve(4) == pytest.approx(0.05)
    assert 0.08 < curve(16) < 0.16


TRUE = {1: 0.030, 2: 0.030, 4: 0.032, 8: 0.035, 16: 0.042, 32: 0.060}
SURVIVAL = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.35]
"""Seven candidates, all of which are worth their rows by these costs."""


def passes(curve: StepCurve, count: int) -> list[int]:
    """Rows of so many passes, each over the candidates that policy `adaptive` chooses."""
    chosen = []
    for _ in range(count):
        costs = Costs(curve, probe=curve.probe)
        rows = 1 + Prices(costs, token_s=0.012).best_count(SURVIVAL)
        curve.sample(rows, interpolate(TRUE, rows))
        chosen.append(rows)
    return chosen


def test_a_point_measured_too_slow_is_found_out_and_used_again() -> None:
    curve = StepCurve({**TRUE, 8: 3 * TRUE[8]})
    assert 8 not in passes(curve, PROBE_EVERY), "nothing else would show it"
    passes(curve, len(TRUE) * PROBE_EVERY)
    assert curve(8) == pytest.approx(TRUE[8])
    assert set(passes(curve, PROBE_EVERY - 1)) == {8}
    assert curve(32) == pytest.approx(TRUE[32], rel=0.1), "it does not make others look cheap"


def test_probes_are_few_and_leave_a_right_curve_as_it_was() -> None:
    steep = {rows: 0.02 * rows for rows in TRUE}
    curve = StepCurve(steep)
    for number in range(1, 10 * PROBE_EVERY):
        assert curve.probe is None or number % PROBE_EVERY == 1
        curve.sample(
            4 if curve.probe is None else curve.probe[0], 0.08 if curve.probe is None else 0.02 * curve.probe[0]
        )
    assert curve.points() == pytest.approx(steep)


def test_a_probe_takes_no_less_than_those_seen_lately_allow() -> None:
    curve = StepCurve({1: 0.03, 4: 0.2, 8: 0.04, 16: 0.2})
    offered = set()
    for _ in range(4 * PROBE_EVERY):
        curve.sample(8, 0.04)
        offered.add(curve.probe)
    assert offered == {None, (1, 0.005), (4, 0.02), (16, 0.04)}, (
        "a share of what more rows take; at least what fewer do"
    )


def test_what_passes_took_beside_other_jobs_does_not_stand_for_ever() -> None:
    curve = StepCurve({1: 0.1}, provisional=True)
    for rows in (1, 2, 4, 8, 16) * 3:
        curve.sample(rows, 3 * (0.06 + 0.004 * rows))
    for _ in range(2 * RELIEF_EVERY):
        curve.sample(1, 0.064)
    for rows in (2, 4, 8, 16):
        assert curve(rows) == pytest.approx(0.06 + 0.004 * rows, rel=0.1), f"{rows} rows, that no pass had since"


def test_points_stay_where_the_load_does() -> None:
    curve = StepCurve({1: 0.1}, provisional=True)
    for rows in (1, 4, 16):
        curve.sample(rows, 0.06 + 0.02 * rows)
    for number in range(8 * RELIEF_EVERY):
        curve.sample(1, 0.08 + 0.01 * (number % 2))
    assert curve(16) == 0.06 + 0.02 * 16 and curve(4) == 0.06 + 0.02 * 4


def test_a_standstill_of_the_machine_is_no_step() -> None:
    latest = Latest()
    assert latest.value is None
    for seconds in (0.006, 0.006, 1.5, 0.007, 0.006):
        latest.sample(seconds)
    assert latest.value == 0.006
    for _ in range(Latest.REMEMBERED):
        latest.sample(0.02)
    assert latest.value == 0.02


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, -5.0, 0.0, 1e9])
def test_any_sample_leaves_estimates_that_a_policy_can_divide_by(odd: float) -> None:
    rtt = RttEstimator()
    curve = StepCurve({1: 0.02})
    clock = StepClock(0.01)
    for sample in (odd, 0.02, odd):
        rtt.sample(sample)
        curve.sample(1, sample)
    for now in (0.0, 1e9, 2e9, 3e9, 4e9):
        clock.frame(now)
    assert 0 <= rtt.high_s <= 5 * MAX_S and 0 <= (rtt.srtt_s or 0) <= MAX_S
    assert 0 < curve(1) <= MAX_S and 0 < clock.step_s <= MAX_S


def arrive(clock: StepClock, *gaps: float) -> float:
    now = 0.0
    clock.frame(now)
    for gap in gaps:
        now += gap
        clock.frame(now)
    return clock.step_s


@pytest.mark.parametrize(
    ("prior", "gaps", "step_s"),
    [
        (0.1, [0.006, 0.006, 0.0, 0.012, 0.006, 5.0, 0.006], 0.006),
        (0.1, [0.0, 0.0001, *[0.006] * 6], 0.006),
        (0.004, [*[0.004] * 5, *[0.06, *[0.0] * 16] * 3], 0.004),
    ],
    ids=["a burst and a pause", "together at first", "bursts of a lossy link"],
)
def test_step_time_is_the_median_gap_whatever_bursts_there_are(prior: float, gaps: list[float], step_s: float) -> None:
    assert arrive(StepClock(prior), *gaps) == pytest.approx(step_s)


def test_trees_of_several_requests_in_a_frame_are_one_step() -> None:
    clock = StepClock(0.1)
    for number in range(6 * 8):
        clock.frame(0.012 * (number // 8), levels=1 + number % 2)
    assert clock.step_s == pytest.approx(0.006), "two levels of some"


def test_before_three_gaps_the_prior_stands_and_breaks_are_no_gaps() -> None:
    clock = StepClock(0.1)
    assert arrive(clock, 0.006, 0.006) == 0.1
    clock.broken()
    clock.frame(100.0)
    clock.frame(100.006)
    assert clock.step_s == pytest.approx(0.006)
