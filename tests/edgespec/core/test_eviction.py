"""The eviction order of cached prefixes, and which open request yields to another."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.eviction import MARGIN, MAX_IDLE_S, Holding, Kept, first_to_go, gives_way

kept = st.builds(Kept, st.sampled_from([b"", b"a", b"b", b"c"]), st.integers(0, 5), st.floats(0, 2 * MAX_IDLE_S))


def test_useless_ones_go_first_then_idle_ones_then_the_largest_scopes() -> None:
    now = 10 * MAX_IDLE_S
    entries = [
        Kept(b"small", 1, now - 5),
        Kept(b"large", 2, now - 3),
        Kept(b"large", 2, now - 4),
        Kept(b"idle", 9, 1.0),
        Kept(b"", 9, now),
        Kept(b"empty", 0, now),
    ]
    assert first_to_go(entries, now) == [4, 5, 3, 2, 1, 0]


def test_a_prefix_is_idle_after_the_limit_and_not_at_it() -> None:
    now = 10 * MAX_IDLE_S
    large = Kept(b"large", 2, now)
    assert first_to_go([Kept(b"small", 1, now - MAX_IDLE_S), large], now) == [1, 0]
    assert first_to_go([Kept(b"small", 1, now - MAX_IDLE_S - 1), large], now) == [0, 1]


@given(st.lists(kept, max_size=12))
def test_no_small_scope_is_evicted_before_a_larger_one(entries: list[Kept]) -> None:
    now = 2 * MAX_IDLE_S
    order = first_to_go(entries, now)
    assert sorted(order) == list(range(len(entries)))
    size = {scope: sum(one.size for one in entries if one.scope == scope) for scope in (b"a", b"b", b"c")}
    found = [entries[i] for i in order]
    fresh = [one for one in found if one.scope and one.size and now - one.used_at <= MAX_IDLE_S]
    assert [size[one.scope] for one in fresh] == sorted((size[one.scope] for one in fresh), reverse=True)


@pytest.mark.parametrize("seed", range(40))
def test_an_owner_loses_only_to_one_that_holds_less_by_the_margin(seed: int) -> None:
    draws = random.Random(seed)
    decided = {"waits": 0, "takes": 0}
    for _ in range(60):
        held = [Holding(draws.choice("abc"), draws.randint(1, 200), order) for order in range(draws.randint(1, 8))]
        asker = Holding(draws.choice("abc"), draws.randint(1, 400), 99)
        held.append(asker)
        loser = gives_way(held, asker)
        assert loser is not None

        sizes = {owner: sum(holding.size for holding in held if holding.owner == owner) for owner in "abc"}
        asked = sizes[str(asker.owner)]
        if loser.owner == asker.owner:
            decided["waits"] += 1
            assert max(sizes.values()) <= MARGIN * asked
        else:
            decided["takes"] += 1
            assert sizes[str(loser.owner)] > MARGIN * asked
    assert min(decided.values()) > 5


def test_of_two_that_need_about_the_same_the_one_that_has_it_works_on() -> None:
    """Without a margin, each would take the room that the other one has just been given, token by token."""
    small = Holding("a", 100, 1)
    large = Holding("b", 125, 2)
    assert gives_way([small, large], asker=small) == small
    assert gives_way([small, large], asker=large) == large

    larger = Holding("b", 126, 2)
    assert gives_way([small, larger], asker=small) == larger
