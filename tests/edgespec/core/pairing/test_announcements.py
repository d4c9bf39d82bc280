"""The stored announcements under a flood of false ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.worker.discovery import MAX_ENTRIES, MAX_PER_HOST, Announcements


def fakes(table: Announcements[str], count: int, first: int = 0) -> int:
    """Adds announcements, each with a host of its own; returns how many were stored."""
    return sum(table.put(f"fake {n}", [f"10.0.{n // 250}.{n % 250}"], f"fake {n}") for n in range(first, first + count))


@pytest.mark.claim("two-silent-fakes-cost-nothing-where-the-last-address-is-good")
def test_a_flood_of_newcomers_does_not_push_out_what_has_not_failed() -> None:
    table = Announcements[str]()
    assert table.put("real", ["10.9.9.9"], "real")
    assert fakes(table, 1000) == MAX_ENTRIES - 1
    assert table.values()[0] == "real" and len(table.values()) == MAX_ENTRIES


def test_a_latecomer_finds_room_as_soon_as_one_has_failed() -> None:
    table = Announcements[str]()
    fakes(table, MAX_ENTRIES)
    assert not table.put("real", ["10.9.9.9"], "real")
    table.failed(lambda value: value == "fake 3")
    assert table.put("real", ["10.9.9.9"], "real")
    assert "real" in table and "fake 3" not in table


def test_one_host_has_few_entries_and_cannot_take_those_of_others() -> None:
    table = Announcements[str]()
    assert sum(table.put(f"fake {n}", ["10.0.0.66"], f"fake {n}") for n in range(200)) == MAX_PER_HOST
    assert table.put("real", ["10.0.0.1"], "real")
    table.failed(lambda value: value.startswith("fake"))
    assert table.put("another", ["10.0.0.66"], "another")
    assert "real" in table and len(table.values()) == MAX_PER_HOST + 1


def test_what_failed_is_tried_last_and_what_changes_is_new() -> None:
    table = Announcements[str]()
    for name in ("a", "b", "c"):
        table.put(name, [name], name)
    assert table.failed(lambda value: value == "a") == ["a"]
    assert table.values() == ["b", "c", "a"]
    table.put("a", ["a"], "a")  # announced again, as mDNS does periodically: not a reason to try it first
    assert table.values() == ["b", "c", "a"]
    table.put("a", ["a"], "a elsewhere")
    assert table.values() == ["b", "c", "a elsewhere"]
    table.remove("b")
    table.remove("nobody")
    assert table.values() == ["c", "a elsewhere"]


NAMES = st.integers(0, 100)


@given(st.lists(st.tuples(st.sampled_from(["put", "failed", "remove"]), NAMES, st.integers(0, 30)), max_size=300))
def test_the_table_is_bounded_whatever_happens(moves: list[tuple[str, int, int]]) -> None:
    table, known = Announcements[tuple[int, int]](), dict[str, tuple[int, int]]()
    for move, name, host in moves:
        if move == "put" and table.put(str(name), [str(host)], (name, host)):
            known[str(name)] = name, host
        elif move == "failed":
            table.failed(lambda value: value[1] == host)  # noqa: B023
        elif move == "remove":
            table.remove(str(name))
        values = table.values()
        assert len(values) <= MAX_ENTRIES and set(values) <= set(known.values())
        assert all(sum(value[1] == one for value in values) <= MAX_PER_HOST for one in range(31))
