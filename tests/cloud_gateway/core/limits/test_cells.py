"""Rooms in the KV cache, with requests that only count their tokens: who waits, who is preempted, and that all end."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_gateway.core.limits.cells import AGE_S, STEP, TURN, Cells, Room
from cloud_gateway.core.limits.turns import Turns

CAPACITY, ROWS, PASS_S, READ_S = 1100, 17, 0.05, 0.001
"""Of the cache; seconds of a pass, and of reading a token."""
CLAIM = pytest.mark.claim("no-key-keeps-the-kv-cache-from-another")


@dataclass
class Gateway:
    """Passes over all requests that run; prompts are read one after the other and hold nobody up."""

    cells: Cells = field(default_factory=lambda: Cells(CAPACITY, ROWS))
    turns: Turns[Room] = field(default_factory=Turns)
    now: float = 0.0
    ready: dict[Room, float] = field(default_factory=dict)
    """When a request that runs has been read."""
    ended: dict[Room, float] = field(default_factory=dict)
    gained: Counter[Room] = field(default_factory=Counter)
    preempted: Counter[Room] = field(default_factory=Counter)
    first: dict[Room, float] = field(default_factory=dict)
    """When it had its first token."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def ask(self, key: str, prompt: int, count: int) -> Room:
        room = Room(key, next(self.numbers), prompt, prompt + count + ROWS, self.now)
        self.turns.add(key, room)
        return room

    def turn(self, step: int = 1) -> None:
        """One pass, in which each request gains `step` tokens."""
        for room in self.cells.running:
            if room.size and self.cells.lacks(room):
                self._preempt(self.cells.grow(room, self.now))
        left: list[Room] = []

        def enters(room: Room) -> bool:
            found = self.cells.enter(room, self.now)
            left.extend(found or ())
            return found is not None

        while (room := self.turns.take(enters, lambda room: self.cells.is_next(room, self.now))) is not None:
            self.ready[room] = self.now + READ_S * room.tokens
            self._preempt(left)
            left.clear()
        assert sum(room.size for room in self.cells.running) <= CAPACITY
        self.now += PASS_S
        for room in self.cells.running:
            if self.now < self.ready[room]:
                continue
            assert room.size >= min(room.tokens + ROWS, room.longest), "a pass over a whole tree has room"
            room.tokens += min(step, room.longest - ROWS - room.tokens)
            self.gained[room] += step
            self.first.setdefault(room, self.now)
            if room.tokens == room.longest - ROWS:
                self.cells.leave(room)
                self.turns.ended(room.key)
                self.ended[room] = self.now

    def _preempt(self, rooms: list[Room]) -> None:
        for room in rooms:
            assert room.size == 0
            self.turns.put_back(room.key, room)
            self.preempted[room] += 1


requests = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 1000), st.integers(1, 1000), st.integers(0, 200)).filter(
        lambda one: one[1] + one[2] + ROWS <= CAPACITY
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(requests, st.integers(1, 8))
def test_every_request_ends_whatever_others_ask_for(asked: list[tuple[str, int, int, int]], step: int) -> None:
    gateway, todo = Gateway(), sorted(asked, key=lambda one: one[3])
    for turn in range(60_000):
        while todo and todo[0][3] <= turn:
            gateway.ask(*todo.pop(0)[:3])
        gateway.turn(step)
        if len(gateway.ended) == len(asked):
            return
    raise AssertionError(f"{len(asked) - len(gateway.ended)} never end")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(requests, st.integers(1, 8))
def test_with_one_key_the_oldest_request_is_never_preempted(asked: list[tuple[str, int, int, int]], step: int) -> None:
    """So it goes on with every pass, and a preemption is paid for by a whole step of an older request."""
    gateway = Gateway()
    rooms = [gateway.ask("a", prompt, count) for _, prompt, count, _ in asked]
    while len(gateway.ended) < len(rooms):
        oldest = next(room for room in rooms if room not in gateway.ended)
        before = gateway.preempted[oldest]
        gateway.turn(step)
        assert oldest.size or oldest in gateway.ended
        assert gateway.preempted[oldest] == before
    steps = sum(room.longest // (STEP - step) + 1 for room in rooms)
    assert gateway.preempted.total() <= steps * len(rooms)


@CLAIM
def test_a_small_request_gets_room_at_once_from_the_key_that_holds_most() -> None:
    gateway = Gateway()
    large = gateway.ask("large", 100, 900)
    while large.tokens < 950:
        gateway.turn(5)
    small = gateway.ask("small", 40, 512)
    gateway.turn()
    assert small.size == 40 + ROWS + STEP
    assert (large.size, gateway.preempted[large]) == (0, 1)


@CLAIM
def test_other_keys_overtake_a_request_that_does_not_fit() -> None:
    gateway = Gateway()
    bob = gateway.ask("bob", 60, 400)
    gateway.turn()
    whole = gateway.ask("whole", 1000, 50)
    gateway.turn()
    third = gateway.ask("third", 30, 3)
    gateway.turn()
    assert (bob.size > 0, whole.size, third.size) == (True, 0, 30 + 3 + ROWS)


@CLAIM
def test_a_request_for_the_whole_cache_gets_turns_between_small_ones() -> None:
    gateway, waits = Gateway(), list[float]()
    whole = gateway.ask("whole", 900, 150)
    small = gateway.ask("small", 30, 20)
    for _ in range(40_000):
        gateway.turn()
        if small in gateway.ended:
            waits.append(gateway.first[small] - small.since)
            small = gateway.ask("small", 30, 20)
        if whole in gateway.ended:
            break
    assert whole in gateway.ended, f"{gateway.gained[whole]} tokens"
    turns = 150 / TURN + 1
    assert gateway.now <= turns * (AGE_S + READ_S * 1100 + TURN * PASS_S + 3)
    assert sorted(waits)[len(waits) // 2] <= 3 * PASS_S
    assert max(waits) <= READ_S * 1100 + (TURN + 3) * PASS_S, "for a turn at most"


def test_a_key_that_runs_something_does_not_take_room_by_its_age() -> None:
    gateway = Gateway()
    gateway.ask("many", 500, 500)
    bob = gateway.ask("bob", 100, 900)
    second = gateway.ask("many", 400, 500)
    while gateway.now < 3 * AGE_S and not gateway.ended:
        gateway.turn()
        assert second.size == 0
    assert gateway.preempted[bob] == 0 or bob.tokens > 400, "it grew beyond what `many` holds"
