"""Fair turns between API keys, against a slow twin that states the rule as one sorted list."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from cloud_gateway.core.limits.turns import Turns

KEYS = ("a", "b", "c")


def turn_steps(seed: int) -> list[tuple[str, str | int]]:
    """Steps drawn uniformly: the examples of Hypothesis are mostly too short for an order to be wrong."""
    draws = random.Random(seed)
    steps: list[tuple[str, str | int]] = []
    for _ in range(draws.randint(40, 120)):
        step = draws.choice(("add", "take", "end", "remove"))
        what = draws.randint(0, 60) if step == "remove" else draws.choice(KEYS)
        steps.append((step, what))
    return steps


@dataclass
class SlowTwin:
    """One list of all items in the order of arrival; the next one is its minimum under the rule."""

    most: int | None
    items: list[tuple[str, int]] = field(default_factory=list)
    under_way: list[str] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    since: dict[str, int] = field(default_factory=dict)
    """From when on a key has had something waiting."""

    def add(self, key: str, number: int) -> None:
        if all(waiting != key for waiting, _ in self.items):
            self.since[key] = number
        self.items.append((key, number))

    def take(self) -> int | None:
        ready = [item for item in self.items if self.most is None or self.under_way.count(item[0]) < self.most]
        if not ready:
            return None
        taken = min(ready, key=self._rank)
        self.items.remove(taken)
        self.under_way.append(taken[0])
        self.history.append(taken[0])
        return taken[1]

    def _rank(self, item: tuple[str, int]) -> tuple[int, int, int, int]:
        key, number = item
        return self.under_way.count(key), self._last(key), self.since[key], number

    def _last(self, key: str) -> int:
        return max((i for i, served in enumerate(self.history) if served == key), default=-1)


@pytest.mark.claim("turns-are-those-of-the-slow-twin")
@pytest.mark.parametrize("seed", range(60))
def test_turns_are_those_of_the_slow_twin(seed: int) -> None:
    most = (None, 1, 2, 3)[seed % 4]
    steps = turn_steps(seed)
    turns: Turns[int] = Turns()
    twin = SlowTwin(most)
    for number, (step, what) in enumerate(steps):
        if step == "add":
            turns.add(str(what), number, most)
            twin.add(str(what), number)
        elif step == "take":
            assert turns.take() == twin.take()
        elif step == "end" and what in twin.under_way:
            turns.ended(str(what))
            twin.under_way.remove(str(what))
        elif step == "remove":
            found = next((item for item in twin.items if item[1] == what), None)
            assert all(turns.remove(key, int(what)) == (found == (key, what)) for key in KEYS)
            twin.items = [item for item in twin.items if item != found]
        assert len(turns) == len(twin.items)
        assert sorted(turns) == sorted(item for _, item in twin.items)
        assert [turns.waiting(key) for key in KEYS] == [[k for k, _ in twin.items].count(key) for key in KEYS]


def test_of_new_keys_the_one_that_waits_longest_is_next() -> None:
    """Also if the item that it came with was taken back."""
    turns: Turns[int] = Turns()
    for number, key in enumerate(("a", "b", "a")):
        turns.add(key, number)
    turns.remove("a", 0)
    assert [turns.take(), turns.take()] == [2, 1]


def test_a_key_at_its_own_limit_leaves_room_for_another() -> None:
    turns: Turns[str] = Turns()
    for number in range(5):
        turns.add("many", f"many-{number}", most=2)
    assert [turns.take() for _ in range(3)] == ["many-0", "many-1", None]
    turns.add("one", "one-0", most=2)
    assert turns.take() == "one-0"
    turns.ended("many")
    assert turns.take() == "many-2"


def test_others_overtake_what_does_not_fit() -> None:
    turns: Turns[str] = Turns()
    for key in ("large", "small"):
        turns.add(key, key)
    assert turns.take(lambda item: item == "small") == "small"
    turns.put_back("small", "small")
    assert (turns.take(), turns.take()) == ("large", "small")
