"""Model time is shared by time, not by turns."""

from __future__ import annotations

from edgespec.core.drafting.turns import MAX_CREDIT_S, Turns


def shares(turns: Turns, cost: dict[int, float], count: int) -> dict[int, float]:
    """Seconds that each request gets in so many turns, where a turn of each takes what `cost` says."""
    got = dict.fromkeys(cost, 0.0)
    for _ in range(count):
        request = turns.order(cost)[0]
        turns.used(request, cost[request])
        got[request] += cost[request]
    return got


def test_a_request_of_long_turns_gets_no_more_time_than_one_of_short_ones() -> None:
    got = shares(Turns(), {1: 0.1, 2: 0.006}, 400)
    assert 0.9 < got[1] / got[2] < 1.15


def test_a_new_request_gets_the_same_share_from_its_start() -> None:
    turns = Turns()
    shares(turns, {1: 0.006, 2: 0.006}, 1000)
    got = shares(turns, {1: 0.006, 2: 0.006, 3: 0.006}, 30)
    assert max(got.values()) - min(got.values()) < 0.013


def test_a_request_that_had_nothing_to_do_does_not_hold_the_model() -> None:
    turns = Turns()
    shares(turns, {1: 0.006, 2: 0.006}, 10)
    shares(turns, {2: 0.006}, 1000)
    in_a_row = 0
    while turns.order([1, 2])[0] == 1:
        turns.used(1, 0.006)
        in_a_row += 1
    assert in_a_row <= MAX_CREDIT_S / 0.006 + 2


def test_a_closed_request_leaves_nothing() -> None:
    turns = Turns()
    turns.used(1, 5.0)
    turns.drop(1)
    turns.used(2, 0.006)
    assert turns.order([1, 2])[0] == 1
