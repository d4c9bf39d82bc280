"""The calibrator starts as the identity and converges to the observed match rates."""

from __future__ import annotations

import math
import random

import pytest

from edgespec.core.drafting.calibration import Calibrator


def test_it_starts_with_the_drafts_own_probabilities() -> None:
    for q in (0.9, 0.5, 0.03):
        assert Calibrator()(-math.log(q), 1.0, 0) == pytest.approx(q)


def test_it_corrects_an_overconfident_draft() -> None:
    rng, calibrator = random.Random(1), Calibrator()
    for _ in range(400):
        calibrator.observe([-math.log(0.9), -math.log(0.05)], 0.5, 0 if rng.random() < 0.6 else None)
    assert calibrator(-math.log(0.9), 0.5, 0) == pytest.approx(0.6, abs=0.15)
    assert calibrator(-math.log(0.05), 0.5, 1) < 0.05


@pytest.mark.parametrize("hit", [None, 0])
@pytest.mark.parametrize("q", [0.8, 0.5, 0.3])
def test_one_observation_moves_a_probability_by_at_most_a_twentieth(q: float, hit: int | None) -> None:
    calibrator = Calibrator()
    calibrator.observe([-math.log(q)], 1.0, hit)
    moved = calibrator(-math.log(q), 1.0, 0) - q
    assert 0.01 < abs(moved) <= 0.05 and (moved > 0) == (hit is not None)


ODD = [0.0, -1.0, 1e-12, 800.0, 1e300, math.inf, -math.inf, math.nan]


def test_any_numbers_give_probabilities_and_no_lesson_is_more_than_finite() -> None:
    calibrator = Calibrator()
    for cost in ODD:
        for entropy in ODD:
            calibrator.observe([cost, cost], entropy, 1)
            for rank in (0, 9):
                assert 0 <= calibrator(cost, entropy, rank) <= 1
                assert math.isfinite(calibrator.cost(cost, entropy, rank))
    assert 0 < calibrator(0.5, 1.0, 0) < 1


def test_a_huge_entropy_neither_overflows_nor_spoils_what_was_learnt() -> None:
    calibrator = Calibrator()
    for _ in range(50):
        calibrator.observe([0.1], 2**31 / 1000, None)
        assert 0 <= calibrator(0.1, 2**31 / 1000, 0) <= 1
    calibrator.observe([0.1], math.nan, 0)
    before = calibrator(0.1, 1.0, 0)
    calibrator.observe([math.inf], 1.0, 0)
    assert calibrator(0.1, 1.0, 0) == before
