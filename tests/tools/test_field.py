"""The arms of the literature, drifting conditions, and the tuned numbers."""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import partial

import pytest

from cloud_gateway.core.policies.actions import Outcome
from cloud_gateway.core.policies.tuning import TUNING
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.best_first import BestFirstRule
from tools.sim import field, tuned
from tools.sim.sweep import Place

PLACE = Place("q4_0", 0.1, 0.8, 20.0, tokens=90)


def seconds(condition: field.Condition, **rule: float) -> float:
    made = partial(field.Stopping, **rule)  # type: ignore[arg-type]
    return sum(one.seconds for one in field.seconds(made, field.CHAIN, condition, PLACE, 1))


def test_the_bandit_plays_the_length_of_the_least_seconds_per_token_most() -> None:
    bandit, now = field.UcbSpecStop(), 0.0
    for _ in range(400):
        now += 1.0 + 0.1 * bandit.length
        bandit.verified(Outcome(bandit.length, min(bandit.length, 3), True, 0.0), now)
    assert max(bandit.plays) == bandit.plays[3 - 1]


def test_the_fan_out_is_largest_at_both_ends_of_the_chain() -> None:
    worker = field.FanOut(BestFirstRule(branching=4, sequences=16))
    assert worker.fan[0] >= worker.fan[2] and worker.fan[-1] > worker.fan[-2]
    worker.commit(0, [1, 2])
    for _ in range(worker.depth):
        (leaf,) = worker.candidates()
        worker.record([leaf], [Proposal([5, 6, 7, 8], [0.1, 2.5, 3.5, 4.5], 0.5)])
    assert len(worker.candidates()) > worker.depth, "outcomes at each position"


@pytest.mark.parametrize(
    "condition", [one for one in field.CONDITIONS if one.name != "20 ms"], ids=lambda one: one.name
)
def test_every_condition_takes_another_time_than_a_steady_link(condition: field.Condition) -> None:
    assert seconds(condition, unsure=0.5) != seconds(field.CONDITIONS[0], unsure=0.5)


@pytest.mark.parametrize("name", ["kept"])
def test_half_of_a_tuned_number_hardly_changes_the_median_of_places(name: str) -> None:
    """`python -m tools.sim tuning` does so for all of them, with what is learnt carried on."""
    other, here = replace(TUNING, **{name: getattr(TUNING, name) / 2}), tuned.places()
    ratios = [tuned.took(other, place, 1) / tuned.took(TUNING, place, 1) for place in here]
    assert statistics.median(ratios) == pytest.approx(1, abs=0.02), "one completion, in which a prior counts most"
