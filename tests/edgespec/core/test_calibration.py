"""The calibrator begins as the identity and moves to what is seen."""

from __future__ import annotations

import math
import random

import pytest

from edgespec.core.calibration import Calibrator


def test_it_begins_with_what_the_draft_says() -> None:
    for q in (0.9, 0.5, 0.03):
        assert Calibrator()(-math.log(q), 1.0, 0) == pytest.approx(q)


def test_it_learns_that_a_draft_is_too_sure() -> None:
    rng, calibrator = random.Random(1), Calibrator()
    for _ in range(400):
        calibrator.observe([-math.log(0.9), -math.log(0.05)], 0.5, 0 if rng.random() < 0.6 else None)
    assert calibrator(-math.log(0.9), 0.5, 0) == pytest.approx(0.6, abs=0.15)
    assert calibrator(-math.log(0.05), 0.5, 1) < 0.05


def test_few_observations_move_it_little() -> None:
    calibrator = Calibrator()
    for _ in range(3):
        calibrator.observe([-math.log(0.8)], 1.0, None)
    assert calibrator(-math.log(0.8), 1.0, 0) > 0.5


@pytest.mark.parametrize("cost", [0.0, 1e-12, 800.0])
def test_extreme_costs_give_probabilities(cost: float) -> None:
    calibrator = Calibrator()
    calibrator.observe([cost], 20.0, 0)
    assert 0 <= calibrator(cost, 20.0, 9) <= 1
