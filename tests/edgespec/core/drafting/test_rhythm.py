"""When nodes may wait for others, with times by hand."""

from __future__ import annotations

import pytest

from edgespec.core.drafting.algorithm2 import MAX_HOLD, MIN_LEVELS, Drafting, DraftRule, Proposal, Rhythm

PASS_S, RTT_S = 0.1, 0.02


def rhythm() -> Rhythm:
    made = Rhythm()
    made.committed(PASS_S, 1.0)
    return made


def test_nothing_waits_before_a_pass_was_stated() -> None:
    fresh = Rhythm()
    assert not fresh.holds(1.0, 1.0, RTT_S)
    fresh.committed(0.0, 1.0)
    assert not fresh.holds(1.0, 1.001, RTT_S)


def test_the_last_call_is_a_round_trip_before_the_end_of_the_pass() -> None:
    assert rhythm().last_call(RTT_S) == pytest.approx(1.0 + PASS_S - RTT_S)


@pytest.mark.parametrize(
    ("since", "end", "holds"),
    [(1.0, 1.02, True), (1.0, 1.0 + MAX_HOLD * PASS_S + 0.001, False), (1.07, 1.079, True), (1.07, 1.081, False)],
)
def test_nodes_wait_a_quarter_of_a_pass_and_not_past_the_last_call(since: float, end: float, holds: bool) -> None:
    assert rhythm().holds(since, end, RTT_S) is holds


def test_a_far_worker_never_waits() -> None:
    assert not rhythm().holds(1.0, 1.001, 0.15)


def test_the_mean_follows_passes_that_get_longer() -> None:
    one = rhythm()
    for _ in range(10):
        one.committed(0.2, 2.0)
    assert 0.19 < one.pass_s < 0.2


def grown(levels: int) -> Drafting:
    """A chain of so many levels, of which all but the last were sent."""
    drafting = Drafting(1, 1, 1, DraftRule(branching=1))
    drafting.commit(0, [7])
    drafting.rhythm.committed(PASS_S, 1.0)
    for level in range(levels):
        drafting.delta()
        drafting.record(drafting.candidates(), [Proposal([level], [0.1], 0.2)])
    return drafting


@pytest.mark.parametrize(("levels", "due"), [(1, True), (MIN_LEVELS, True), (MIN_LEVELS + 1, False)])
def test_the_first_levels_are_due_at_once_and_later_ones_wait(levels: int, due: bool) -> None:
    assert grown(levels).due(1.0, 1.006, RTT_S) is due


def test_waiting_counts_from_the_first_question() -> None:
    drafting = grown(5)
    times = [1.0 + 0.006 * i for i in range(6)]
    assert [drafting.due(now, now + 0.006, RTT_S) for now in times] == [False] * 4 + [True] * 2
    assert drafting.delta() is not None and not drafting.due(1.04, 1.046, RTT_S)


def test_after_a_divergence_the_first_levels_are_due_again() -> None:
    drafting = grown(5)
    assert not drafting.due(1.0, 1.006, RTT_S)
    drafting.commit(1, [99])
    drafting.rhythm.committed(PASS_S, 1.01)
    assert not drafting.due(1.01, 1.016, RTT_S), "what waited was pruned"
    drafting.record(drafting.candidates(), [Proposal([1], [0.1], 0.2)])
    assert drafting.due(1.02, 1.026, RTT_S)
