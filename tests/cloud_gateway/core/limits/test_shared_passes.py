"""Who shares a pass, and at what price."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_gateway.core.limits.shared_passes import Hold, agree, in_passes, shared_step


def test_a_pass_waits_for_those_that_draft_and_at_most_its_own_time() -> None:
    hold = Hold()
    assert hold.holds(ready=2, drafting=2, now=0.0, pass_s=0.03)
    assert not hold.holds(ready=3, drafting=2, now=0.0, pass_s=0.03), "fewer draft than would wait"
    assert not hold.holds(ready=0, drafting=2, now=0.0, pass_s=0.03)

    assert hold.holds(ready=1, drafting=2, now=0.0, pass_s=0.03)
    assert hold.holds(ready=1, drafting=2, now=0.029, pass_s=0.03)
    assert not hold.holds(ready=1, drafting=2, now=0.031, pass_s=0.03)
    assert hold.holds(ready=1, drafting=2, now=0.031, pass_s=0.03), "the next pass waits again"


def test_the_price_is_the_share_of_the_step() -> None:
    points = ((1, 0.004), (2, 0.004), (4, 0.008), (8, 0.016))
    assert shared_step(0.004, points, 1, 8) == (0.004, points)
    step_s, four = shared_step(0.004, points, 4, 8)
    assert step_s == 0.002 and four == ((1, 0.002), (2, 0.004), (4, 0.008), (8, 0.016)), (
        "as long as the widest measured"
    )
    assert shared_step(0.004, (), 4, 1) == (0.001, ())


def largest_that_pays(worths: Sequence[float], whole: float) -> list[int]:
    """The slow twin of `agree` for requests that draft at any price up to their worth: those of the largest number."""
    for sharing in range(len(worths), 0, -1):
        drafters = [number for number, worth in enumerate(worths) if whole / sharing <= worth]
        if len(drafters) >= sharing:
            return drafters
    return []


@given(st.lists(st.floats(0.1, 4.0), max_size=8))
def test_the_largest_number_drafts_to_whom_their_part_is_worth_it(worths: list[float]) -> None:
    whole = 4.0
    drafting: set[int] = set(range(len(worths)))

    def ask(asked: Sequence[int], sharing: int) -> Sequence[int]:
        drafters = [number for number in asked if whole / sharing <= worths[number]]
        drafting.difference_update(asked)
        drafting.update(drafters)
        return drafters

    agree(range(len(worths)), len(worths), ask)
    assert sorted(drafting) == largest_that_pays(worths, whole)


def test_those_that_leave_are_not_asked_again() -> None:
    calls: list[tuple[list[str], int]] = []

    def ask(asked: Sequence[str], sharing: int) -> Sequence[str]:
        calls.append((list(asked), sharing))
        return asked[1:] if sharing > 2 else asked

    agree("abc", 4, ask)
    assert calls == [(["a", "b", "c"], 4), (["b", "c"], 2)], "the price assumes as many as draft at last"


@pytest.mark.parametrize(
    ("rows", "passes"),
    [([], []), ([2, 2], [[2, 2]]), ([2, 2, 1], [[2, 2], [1]]), ([5, 1], [[5], [1]]), ([1, 5], [[1], [5]])],
)
def test_a_draft_pass_has_as_many_rows_as_it_may(rows: list[int], passes: list[list[int]]) -> None:
    assert [list(group) for group in in_passes(rows, lambda row: row, 4)] == passes
