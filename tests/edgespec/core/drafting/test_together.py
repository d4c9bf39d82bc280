"""Draft steps of several requests in one pass, and the curve of their times that a worker reports."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.best_first import BestFirst
from edgespec.core.drafting.together import CHANGE, LATE, MAX_FACTOR, REMEMBERED, REPORT_EVERY_S, DraftCurve, shared
from edgespec.core.drafting.tree import Node
from edgespec.core.protocol.messages import MAX_MICROS, MAX_POINTS, step_curve


def drafting(number: int, *chances: float, steps: int = 1) -> BestFirst:
    """A request whose draft names these children at each leaf."""
    machine = BestFirst(number, 1, 2)
    machine.commit(0, [7, 8])
    for step in range(steps):
        leaves = machine.candidates()
        found = Proposal([10 * step + i for i in range(len(chances))], [-math.log(p) for p in chances], 1.0)
        machine.record(leaves, [found] * len(leaves))
    return machine


def parts(*machines: BestFirst) -> list[tuple[BestFirst, list[Node]]]:
    return [(one, one.candidates()) for one in machines]


def counts(*machines: BestFirst, most: int = 44, **how: object) -> dict[int, int]:
    return {one.request: len(leaves) for one, leaves in shared(parts(*machines), most, **how)}


@pytest.mark.parametrize("leaf_s", [0.0, 0.1, 0.3, 1.0])
def test_a_lone_request_gets_the_leaves_that_it_would_choose(leaf_s: float) -> None:
    def step_s(leaves: int) -> float:
        return 1 + leaf_s * (leaves - 1)

    machine = drafting(1, 0.5, 0.2, 0.15, 0.1, steps=3)
    same = drafting(1, 0.5, 0.2, 0.15, 0.1, steps=3)
    same.step_s = step_s
    ((_, leaves),) = shared(parts(machine), 44, step_s)
    assert [leaf.path(machine.tree.root) for leaf in leaves] == [
        leaf.path(same.tree.root) for leaf in same.candidates()
    ]


def test_the_most_probable_leaves_of_all_fill_a_pass() -> None:
    sure = drafting(1, 0.9, 0.05)
    unsure = drafting(2, 0.4, 0.3, 0.2)
    assert counts(sure, unsure, most=1) == {1: 1}
    assert counts(sure, unsure, most=3) == {1: 1, 2: 2}
    assert counts(sure, unsure) == {1: 2, 2: 3}


def test_a_pass_is_filled_up_to_where_its_time_bends() -> None:
    machines = [drafting(number, 0.6, 0.3) for number in range(1, 5)]
    assert sum(counts(*machines, step_s=lambda leaves: 1.0).values()) == 8
    assert sum(counts(*machines, step_s=lambda leaves: max(leaves, 4) / 4).values()) == 4
    assert sum(counts(*machines, step_s=float).values()) == 1


def test_of_equal_leaves_those_that_arrive_in_time_come_first() -> None:
    late, timely, unknown = (drafting(number, 0.6, 0.5) for number in (1, 2, 3))
    late.rhythm.committed(1.0, 0.0)
    timely.rhythm.committed(1.0, 0.5)
    how = {"step_s": lambda leaves: 0.1, "now": 0.9, "rtt_s": 0.2}
    assert counts(late, timely, most=2, **how) == {2: 2}
    assert counts(late, unknown, most=2, **how) == {3: 2}, "nothing is known of its passes"
    assert counts(late, drafting(4, 0.6 * LATE - 0.01), most=1, **how) == {1: 1}, "a better leaf, though late"


MEASURED = {1: 0.006, 4: 0.012, 16: 0.030}


def test_it_begins_as_measured_and_interpolates() -> None:
    curve = DraftCurve(MEASURED)
    assert [curve(leaves) for leaves in (1, 2, 16, 32)] == pytest.approx([0.006, 0.008, 0.030, 0.030])
    assert curve.changed(0.0) is None


def test_one_starved_step_is_reported_at_once_and_forgotten_in_time() -> None:
    curve = DraftCurve(MEASURED)
    for _ in range(REMEMBERED):
        curve.sample(1, 0.006)
    curve.sample(4, 0.120)
    report = curve.changed(1.0)
    assert report is not None and report.leaves == [1, 4, 16]
    assert report.micros[0] == pytest.approx(6000 * (REMEMBERED - 1 + 10) / REMEMBERED, abs=1)
    for _ in range(REMEMBERED):
        curve.sample(1, 0.006)
    back = curve.changed(2.0)
    assert back is not None and back.micros == [6000, 12_000, 30_000]


def test_small_changes_and_quick_ones_are_not_sent() -> None:
    curve = DraftCurve(MEASURED)
    for _ in range(REMEMBERED):
        curve.sample(1, 0.006 * (1 + CHANGE) * 0.99)
    assert curve.changed(1.0) is None
    curve.sample(1, 0.060)
    assert curve.changed(1.0) is not None
    curve.sample(1, 0.200)
    assert curve.changed(1.0 + REPORT_EVERY_S * 0.9) is None
    assert curve.changed(1.0 + REPORT_EVERY_S) is not None


@given(st.lists(st.tuples(st.integers(1, 32), st.floats(0, 1e9)), max_size=20))
def test_any_times_give_a_report_that_the_wire_takes(steps: list[tuple[int, float]]) -> None:
    curve = DraftCurve(MEASURED)
    for leaves, seconds in steps:
        curve.sample(leaves, seconds)
    assert math.isfinite(curve(1)) and 0 < curve(1) <= MEASURED[1] * MAX_FACTOR * 1.001
    assert all(0 < seconds <= MAX_MICROS / 1e6 for _, seconds in step_curve(curve.report()))


@pytest.mark.parametrize("points", [{2: 1.0}, {}, dict.fromkeys(range(1, MAX_POINTS + 2), 1.0), {1: 1.0, 2000: 1.0}])
def test_what_the_wire_would_refuse_is_no_curve(points: dict[int, float]) -> None:
    with pytest.raises(ValueError):
        DraftCurve(points)
