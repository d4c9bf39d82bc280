"""Rooms in the KV cache, with requests that only count their tokens: who waits, who is preempted, and that all end."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_gateway.core.limits.rooms import Room, RoomPrices
from cloud_gateway.core.limits.turns import Turns
from cloud_gateway.parts.kv_preemption.cells import MEMORY_S, STEP, TURN_READINGS, WAIT_READINGS, Cells

CAPACITY = 1100
ROWS = 17
PASS_S = 0.05
READ_S = 0.001
"""Cells of the cache; seconds of a pass, and of reading a token."""
LONGEST_TURN_S = (1 + TURN_READINGS) * CAPACITY * READ_S
"""Reading and turn of a request that fills the cache."""
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
    lost_at: dict[Room, float] = field(default_factory=dict)
    """When it was preempted last."""
    first: dict[Room, float] = field(default_factory=dict)
    """When it had its first token."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    booked: list[tuple[float, set[str], set[str]]] = field(default_factory=list)
    """Time of each turn, the keys that ran until the next one, and those that waited for room."""
    came: list[tuple[float, str, int, int]] = field(default_factory=list)
    """Time at which a key asked for room that neither ran nor waited, the key, other keys, and tokens read by them."""
    progress: dict[str, float] = field(default_factory=dict)
    """When a request of a key gained a token last, or when the key's first one came."""
    longest_wait_s: float = 0.0
    """Longest time in which a key had requests of which none gained a token."""

    def ask(self, key: str, prompt: int, count: int) -> Room:
        room = Room(key, next(self.numbers), prompt, prompt + count + ROWS, self.now)
        if not self.turns.waiting(key) and all(other.key != key for other in self.cells.running):
            self.progress[key] = self.now
        self.turns.add(key, room)
        return room

    def turn(self, step: int = 1) -> None:
        """One pass, in which each request gains `step` tokens."""
        for room in self.cells.running:
            room.read = room.tokens if self.now >= self.ready[room] else 0
        self.cells.advance(self.now, RoomPrices(READ_S, PASS_S))
        for growth in self.cells.grow(self.now):
            self._preempt(growth.preempted)
        left: list[Room] = []
        refused: set[str] = set()

        def enters(room: Room) -> bool:
            present = {other.key for other in (*self.cells.running, *self.cells._waiting)}
            if room.key not in present and self.lost_at.get(room) != self.now:
                read = sum(other.read for other in self.cells.running)
                self.came.append((self.now, room.key, len(present), read))
            preempted = self.cells.enter(room, self.now)
            left.extend(preempted or ())
            if preempted is None:
                refused.add(room.key)
            return preempted is not None

        while (room := self.turns.take(enters)) is not None:
            refused.clear()
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
            self.longest_wait_s = max(self.longest_wait_s, self.now - self.progress[room.key])
            self.progress[room.key] = self.now
            self.first.setdefault(room, self.now)
            if room.tokens == room.longest - ROWS:
                self.cells.leave(room)
                self.turns.ended(room.key)
                self.ended[room] = self.now

        self.booked.append((self.now - PASS_S, {room.key for room in self.cells.running}, refused))

    def _preempt(self, rooms: Sequence[Room]) -> None:
        for room in rooms:
            assert room.size == 0
            self.lost_at[room] = self.now
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
    gateway = Gateway()
    todo = sorted(asked, key=lambda one: one[3])
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
    gateway = Gateway()
    waits: list[float] = []
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
    alone_s = 900 * READ_S + 150 * PASS_S
    assert gateway.now <= 2 * alone_s
    assert max(waits, default=0.0) <= LONGEST_TURN_S + WAIT_READINGS * CAPACITY * READ_S


def test_a_key_that_runs_something_takes_no_room_by_its_waiting() -> None:
    gateway = Gateway()
    gateway.ask("many", 500, 500)
    bob = gateway.ask("bob", 100, 900)
    second = gateway.ask("many", 400, 500)
    while gateway.now < 3 * LONGEST_TURN_S and not gateway.ended:
        gateway.turn()
        assert second.size == 0
    assert gateway.preempted[bob] == 0 or bob.tokens > 400, "it grew beyond what `many` holds"


def crowd(seed: int, keys: str, count: int) -> list[tuple[float, str, int, int]]:
    """Requests drawn uniformly: when they come, their key, tokens of the prompt and of the completion."""
    draws = random.Random(seed)
    asked: list[tuple[float, str, int, int]] = []
    for _ in range(count):
        prompt = draws.choice((draws.randint(1, 120), draws.randint(1, 1000)))
        completion = draws.randint(1, min(300, CAPACITY - ROWS - prompt))
        asked.append((draws.uniform(0, 60), draws.choice(keys), prompt, completion))
    return sorted(asked)


def run_crowd(asked: list[tuple[float, str, int, int]]) -> Gateway:
    """Until all of them have ended."""
    gateway = Gateway()
    todo = list(asked)
    for _ in range(60_000):
        while todo and todo[0][0] <= gateway.now:
            gateway.ask(*todo.pop(0)[1:])
        gateway.turn()
        if len(gateway.ended) == len(asked):
            return gateway
    raise AssertionError(f"{len(asked) - len(gateway.ended)} never end")


@pytest.mark.claim("no-key-keeps-the-kv-cache-for-longer-than-its-turn")
@pytest.mark.parametrize("keys", ["ab", "abcd", "abcdefgh"])
@pytest.mark.parametrize("seed", range(12))
def test_no_key_waits_for_longer_than_a_turn_of_each_other_key(seed: int, keys: str) -> None:
    gateway = run_crowd(crowd(seed, keys, 48))
    turns_s = len(keys) * LONGEST_TURN_S
    assert gateway.longest_wait_s <= turns_s + WAIT_READINGS * CAPACITY * READ_S


@pytest.mark.parametrize("seed", range(12))
def test_lags_are_those_of_the_slow_twin(seed: int) -> None:
    """The twin plays every turn again at the end."""
    gateway = run_crowd(crowd(seed, "abcd", 48))
    gateway.cells.advance(gateway.now, RoomPrices(READ_S, PASS_S))
    lags = dict.fromkeys("abcd", 0.0)
    present_at = dict.fromkeys("abcd", -math.inf)
    for number, (at, running, waiting) in enumerate(gateway.booked):
        for came_at, key, others, read in gateway.came:
            if came_at == at:
                credited = min(lags[key] + (at - present_at[key]) / (others + 1), read * READ_S)
                lags[key] = max(lags[key], credited)
        end = gateway.booked[number + 1][0] if number + 1 < len(gateway.booked) else gateway.now
        contending = running | waiting
        lags = {key: lag * math.exp((at - end) / MEMORY_S) for key, lag in lags.items()}
        for key in contending:
            present_at[key] = end
            ran = 1.0 if key in running else 0.0
            if waiting - running:
                lags[key] += (end - at) * (len(running) / len(contending) - ran)
            elif lags[key] > 0:
                lags[key] = max(0.0, lags[key] - (end - at) / (len(running) + 1))
    assert any(abs(lag) > 0.2 for lag in lags.values())
    for key in "abcd":
        assert gateway.cells.lag(key) == pytest.approx(lags[key], abs=0.05)


def test_a_request_that_has_entered_waits_no_more() -> None:
    cells = Cells(CAPACITY, ROWS)
    large, small = (Room("key", order, tokens, tokens + STEP, 0.0) for order, tokens in enumerate((900, 300)))
    cells.advance(0.0, RoomPrices(READ_S, PASS_S))
    assert cells.enter(large, 0.0) == []
    assert cells.enter(small, 0.0) is None
    assert cells._waiting == [small]
    cells.leave(large)
    assert cells.enter(small, 1.0) == []
    assert cells._waiting == []
