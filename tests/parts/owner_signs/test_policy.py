"""When a worker steps aside and drafts again: the table, the hours, and a random walk."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.parts.owner_signs.policy import REASONS, TABLE, OwnerPolicy, OwnerState, Sighting, SteppingAside

LIMITS = {"input": 1.0, "cpu": 0.5, "battery": 1.0}
NOON = 43_200.0


def test_the_table_covers_each_event_that_a_state_can_meet() -> None:
    missing = {(state, event) for state in OwnerState for event in Sighting} - set(TABLE)
    assert missing == {
        (OwnerState.DRAFTING, Sighting.RESTED),
        (OwnerState.ASIDE, Sighting.RESTED),
    }  # only resting ends so
    assert {TABLE[state, Sighting.PRESENT] for state in OwnerState} == {OwnerState.ASIDE}


@pytest.mark.parametrize(
    ("mode", "hours", "day_s", "values", "says"),
    [
        ("when-idle", (), NOON, {}, None),
        ("when-idle", (), NOON, {"cpu": 0.49, "input": 0.0}, None),
        ("when-idle", (), NOON, {"cpu": 0.5}, REASONS["cpu"]),
        ("when-idle", (), NOON, {"cpu": 4.0, "input": 1.0}, REASONS["input"]),
        ("when-idle", (), NOON, {"gpu": 100.0}, None),
        ("always", (), NOON, {"input": 5.0}, None),
        ("never", (), NOON, {}, "its configuration says never"),
        ("always", ((64_800.0, 28_800.0),), NOON, {}, "outside its hours"),
        ("always", ((64_800.0, 28_800.0),), 64_800.0, {}, None),
        ("always", ((64_800.0, 28_800.0),), 28_799.0, {}, None),
        ("always", ((64_800.0, 28_800.0),), 28_800.0, {}, "outside its hours"),
        ("always", ((0.0, 86_400.0),), 86_399.0, {}, None),
        ("when-idle", ((NOON, 50_000.0), (0.0, 1.0)), NOON, {"battery": 1.0}, REASONS["battery"]),
    ],
)
def test_the_policy_says_why_not(mode: str, hours: tuple, day_s: float, values: dict, says: str | None) -> None:
    assert OwnerPolicy(mode, hours, LIMITS).objection(day_s, values) == says


def test_it_steps_aside_at_once_and_comes_back_after_the_idle_time() -> None:
    presence = SteppingAside(OwnerPolicy(limits=LIMITS, idle_s=60))
    assert presence.look(0, NOON, {"input": 0}).drafting
    aside = presence.look(10, NOON, {"input": 1})
    assert (aside.state, aside.because, aside.since) == (OwnerState.ASIDE, REASONS["input"], 10)
    resting = presence.look(11, NOON, {"input": 0})
    assert (resting.state, resting.because, resting.wake_at) == (OwnerState.RESTING, REASONS["input"], 71)
    assert presence.look(40, NOON, {"cpu": 1}).because == REASONS["cpu"]
    assert presence.look(41, NOON, {}).wake_at == 101
    assert not presence.look(100.9, NOON, {}).drafting
    back = presence.look(101, NOON, {})
    assert (back.state, back.because, back.since, back.wake_at) == (OwnerState.DRAFTING, None, 101, math.inf)


def test_the_model_is_freed_by_the_rule_and_loaded_when_it_drafts() -> None:
    presence = SteppingAside(OwnerPolicy(limits=LIMITS, idle_s=5, free_after_s=30))
    first = presence.look(0, NOON, {"cpu": 1})
    assert first.model and first.wake_at == 30
    assert presence.look(29.9, NOON, {"cpu": 1}).model
    assert not presence.look(30, NOON, {"cpu": 1}).model
    assert not presence.look(31, NOON, {}).model
    assert presence.look(36, NOON, {}).model
    kept = SteppingAside(OwnerPolicy(limits=LIMITS))
    assert kept.look(0, NOON, {"cpu": 1}).model and kept.look(1e9, NOON, {"cpu": 1}).model


def test_it_wakes_when_the_hours_change() -> None:
    presence = SteppingAside(OwnerPolicy("always", ((64_800.0, 28_800.0),), idle_s=0))
    assert presence.look(5, NOON, {}).wake_at == 5 + 64_800 - NOON
    assert presence.look(6, 64_800.0, {}).state is OwnerState.RESTING
    assert presence.look(7, 64_801.0, {}).drafting


@given(
    steps=st.lists(st.tuples(st.floats(0.01, 40), st.sampled_from([0.0, 0.4, 0.5, 3.0])), max_size=60),
    idle_s=st.floats(0, 50),
    free_after_s=st.one_of(st.just(math.inf), st.floats(0, 50)),
)
def test_it_never_drafts_beside_its_owner(steps: list[tuple[float, float]], idle_s: float, free_after_s: float) -> None:
    presence = SteppingAside(OwnerPolicy(limits=LIMITS, idle_s=idle_s, free_after_s=free_after_s))
    now = 0.0
    quiet_since = -math.inf
    looks = [presence.look(now, NOON, {})]
    for wait, cores in steps:
        now += wait
        verdict = presence.look(now, NOON, {"cpu": cores})
        looks.append(verdict)
        if cores >= LIMITS["cpu"]:
            assert verdict.state is OwnerState.ASIDE and verdict.because == REASONS["cpu"]
            quiet_since = math.inf
        elif quiet_since == math.inf:
            quiet_since = now
            assert verdict.state is OwnerState.RESTING
        else:
            assert verdict.drafting == (now >= quiet_since + idle_s)
        assert verdict.wake_at > now or verdict.state is OwnerState.RESTING
        assert verdict.drafting == (verdict.because is None)
        assert verdict.model == (verdict.drafting or now < verdict.since + free_after_s)
    for before, after in pairwise(looks):
        assert (before.since == after.since) == (before.drafting == after.drafting)
