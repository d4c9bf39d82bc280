"""The target's entropy, learned from a worker's frames, and the limit that follows."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from cloud_gateway.core.policies.entropy import (
    CENTRE,
    KEPT,
    MAX_ENTROPY,
    MIN_WEIGHT,
    PRIOR_INFORMATION,
    PathOdds,
)


def taught(cases: int, seed: int, level: float, slope: float) -> PathOdds:
    """After so many open leaves of a worker with these log-odds of being on the path."""
    odds = PathOdds()
    rng = random.Random(seed)
    for _ in range(cases):
        entropy = rng.expovariate(1 / 1.5)
        chance = 1 / (1 + math.exp(-(level + slope * (entropy - CENTRE))))
        odds.observe(entropy, on_path=rng.random() < chance)
    return odds


def test_each_step_is_newtons_by_its_slow_twin() -> None:
    """Against the same step with matrices, over 300 cases."""
    odds = PathOdds()
    rng = random.Random(1)
    prior = np.diag(PRIOR_INFORMATION)
    information = prior
    for _ in range(300):
        entropy = rng.expovariate(1 / 1.5)
        features = np.array([1.0, min(entropy, MAX_ENTROPY) - CENTRE])
        weights = np.array([odds.level, odds.slope])
        chance = 1 / (1 + math.exp(-float(weights @ features)))
        on_path = rng.random() < 1 / (1 + math.exp(2 * (entropy - CENTRE)))

        weight = max(chance * (1 - chance), MIN_WEIGHT)
        information = KEPT * information + (1 - KEPT) * prior + weight * np.outer(features, features)
        expected = weights + np.linalg.solve(information, (on_path - chance) * features)
        odds.observe(entropy, on_path=on_path)
        assert [odds.level, odds.slope] == pytest.approx([expected[0], min(expected[1], 0.0)])


@pytest.mark.parametrize(("level", "slope"), [(0.0, -2.0), (2.0, -1.0), (1.0, 0.0), (-1.0, -0.5)])
def test_the_odds_of_a_pair_are_learnt_from_its_open_leaves(level: float, slope: float) -> None:
    found = [taught(400, seed, level, slope) for seed in range(20)]
    for entropy in (0.3, 1.3, 3.0):
        mean = sum(odds.chance(entropy) for odds in found) / len(found)
        assert mean == pytest.approx(1 / (1 + math.exp(-(level + slope * (entropy - CENTRE)))), abs=0.1)


def test_the_prior_counts_as_the_cases_that_it_names() -> None:
    """Four of probability 0.9, and eight of them 1.2 nats from the centre."""
    of_one_case = 0.9 * 0.1
    assert pytest.approx((4 * of_one_case, 8 * of_one_case * 1.2**2), rel=0.05) == PRIOR_INFORMATION


def test_a_worker_that_is_always_right_has_nearly_no_limit() -> None:
    odds = PathOdds()
    for _ in range(2000):
        odds.observe(CENTRE, on_path=True)
    assert 0.99 < odds.chance(CENTRE) < 0.999


def test_the_limit_is_the_entropy_of_the_chance_asked_for() -> None:
    odds = taught(400, 1, 0.5, -1.5)
    for chance in (0.2, 0.4, 0.6, 0.8):
        assert odds.chance(odds.limit(chance)) == pytest.approx(chance)
    assert odds.limit(0.0) == math.inf and odds.limit(1.0) == 0.0
    assert odds.limit(odds.chance(MAX_ENTROPY) / 2) == math.inf


def test_a_worker_that_fails_at_high_entropy_gets_a_lower_limit() -> None:
    steady = PathOdds()
    failing = PathOdds()
    for _ in range(40):
        for entropy in (0.2, 3.0):
            steady.observe(entropy, on_path=True)
            failing.observe(entropy, on_path=entropy < 1)
    assert failing.chance(0.2) > 0.8 > 0.2 > failing.chance(3.0)
    assert 0.5 < failing.limit(0.5) < 2.5 and steady.limit(0.5) == math.inf


def test_what_was_learnt_of_another_worker_is_forgotten() -> None:
    odds = taught(1000, 1, 3.0, -0.1)
    assert odds.chance(2.0) > 0.9
    for _ in range(80):
        odds.observe(2.0, on_path=False)
    assert odds.chance(2.0) < 0.3


def test_high_entropy_never_makes_a_worker_more_likely() -> None:
    odds = PathOdds()
    for _ in range(200):
        odds.observe(0.1, on_path=False)
        odds.observe(4.0, on_path=True)
        chances = [odds.chance(entropy / 10) for entropy in range(80)]
        assert chances == sorted(chances, reverse=True)


@pytest.mark.parametrize("entropy", [math.inf, -math.inf, math.nan, 1e300, -1.0])
def test_an_impossible_entropy_leaves_finite_odds(entropy: float) -> None:
    odds = PathOdds()
    for number in range(100):
        odds.observe(entropy, on_path=number % 2 == 0)
    assert 0 < odds.chance(entropy) < 1 and all(map(math.isfinite, odds.state()))


def test_its_state_is_read_back_exactly_and_checked() -> None:
    odds = taught(50, 1, 0.0, -1.0)
    other = PathOdds()
    other.resume(odds.state())
    assert other.state() == odds.state() and other.chance(1.0) == odds.chance(1.0)
    for state in ([0.0], [*odds.state(), 1.0], [math.nan, *odds.state()[1:]], [0.0, 1.0, 1.0, 0.0, 1.0]):
        with pytest.raises(ValueError):
            PathOdds().resume(state)
