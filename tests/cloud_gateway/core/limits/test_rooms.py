"""Rooms of requests of which none is preempted: all that each can ever use, in the order in which they were refused."""

from __future__ import annotations

import random

import pytest

from cloud_gateway.core.limits.rooms import Room, RoomPrices, WholeRooms

CAPACITY = 100
ROWS = 5


def room(order: int, longest: int, key: str = "key") -> Room:
    return Room(key, order, 1, longest, 0.0)


def test_a_request_has_all_that_it_can_ever_use() -> None:
    rooms = WholeRooms(CAPACITY, ROWS)
    first = room(1, 60)
    second = room(2, 41)
    assert rooms.enter(first, 0.0) == ()
    assert rooms.enter(second, 0.0) is None
    assert (first.size, second.size) == (60, 0)

    rooms.advance(1.0, RoomPrices())
    assert list(rooms.grow(1.0)) == []
    rooms.leave(first)
    assert rooms.enter(second, 2.0) == ()
    assert (first.size, second.size) == (0, 41)


def test_small_requests_do_not_overtake_one_that_was_refused() -> None:
    rooms = WholeRooms(CAPACITY, ROWS)
    running = room(1, 60)
    large = room(2, 90, "large")
    small = room(3, 10, "small")
    rooms.enter(running, 0.0)
    assert rooms.enter(large, 0.0) is None
    assert rooms.enter(small, 0.0) is None, "it would fit"

    rooms.leave(running)
    assert rooms.enter(small, 1.0) is None
    assert rooms.enter(large, 1.0) == ()
    assert rooms.enter(small, 1.0) == ()


def test_a_client_that_leaves_holds_nobody_up() -> None:
    rooms = WholeRooms(CAPACITY, ROWS)
    running = room(1, 60)
    large = room(2, 90)
    small = room(3, 10)
    rooms.enter(running, 0.0)
    assert rooms.enter(large, 0.0) is None
    rooms.leave(large)
    assert rooms.enter(small, 0.0) == ()


@pytest.mark.parametrize("seed", range(20))
def test_all_end_and_never_hold_more_than_there_is(seed: int) -> None:
    draws = random.Random(seed)
    rooms = WholeRooms(CAPACITY, ROWS)
    waiting = [room(order, draws.randint(1, CAPACITY), draws.choice("abc")) for order in range(60)]
    running: list[Room] = []
    turns = 0
    while waiting or running:
        turns += 1
        for entered in [each for each in waiting if rooms.enter(each, float(turns)) is not None]:
            waiting.remove(entered)
            running.append(entered)
        assert sum(each.size for each in running) <= CAPACITY
        ended = draws.choice(running)
        running.remove(ended)
        rooms.leave(ended)
    assert turns <= 60
