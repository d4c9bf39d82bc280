"""The best-first rule, and the calibrator that decides how wide it drafts, from the draft's probabilities on."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule
from edgespec.core.drafting.calibration import Calibrator
from edgespec_lab.sim.steps import Curve

PROMPT = [7, 8, 9]


def proposal(*chances: float, first: int = 100, entropy: float = 1.0) -> Proposal:
    return Proposal([first + i for i in range(len(chances))], [-math.log(p) for p in chances], entropy)


def drafting(**rule: float) -> BestFirst:
    machine = BestFirst(1, 1, len(PROMPT), BestFirstRule(**rule), calibrator=Calibrator(rate=0.0))
    machine.commit(0, PROMPT)
    return machine


def grow(machine: BestFirst, steps: int, *chances: float) -> None:
    for step in range(steps):
        leaves = machine.candidates()
        machine.record(leaves, [proposal(*chances, first=100 + 10 * step + 1000 * i) for i, _ in enumerate(leaves)])


def test_the_root_gets_four_children_whatever_their_probability() -> None:
    machine = drafting()
    grow(machine, 1, 0.9999, 3e-5, 2e-5, 1e-5)
    assert len(machine.tree.root.children) == 4


def test_leaves_come_in_order_of_path_probability() -> None:
    machine = drafting(sequences=8)
    grow(machine, 3, 0.6, 0.2, 0.1, 0.05)
    costs = [leaf.cost for leaf in machine.candidates()]
    assert len(costs) == 8 and all(a <= b for a, b in pairwise(costs))


def test_an_unlikely_child_is_sent_once_a_commit_makes_it_likely() -> None:
    machine = drafting(floor=0.05)
    grow(machine, 1, 0.5, 0.1)
    second = machine.tree.root.children[101]
    machine.record([second], [proposal(0.5, 0.3, first=500)])
    assert set(second.children) == {500}, "0.1 x 0.3 is below the floor, 0.1 x 0.5 is not"
    machine.delta()
    machine.commit(len(PROMPT), [101])
    assert set(machine.tree.root.children) == {500, 501}
    frame = machine.delta()
    assert frame is not None and list(frame.tokens) == [501]


def test_the_gateway_takes_its_frames_across_commits() -> None:
    machine = drafting(floor=0.05)
    tree = CandidateTree(PROMPT)
    for _ in range(6):
        grow(machine, 2, 0.6, 0.25, 0.1)
        while (frame := machine.delta()) is not None:
            assert tree.merge("w", frame, "w").stale == 0
        token = min(machine.tree.root.children.values(), key=lambda child: child.cost).token
        machine.commit(len(machine.prefix), [token])
        tree.advance([token])
    assert tree.depth() >= 2


def test_the_number_of_leaves_follows_the_step_curve() -> None:
    flat = drafting()
    steep = drafting()
    for machine in (flat, steep):
        grow(machine, 3, 0.5, 0.2, 0.15, 0.1)
    flat.step_s = lambda n: 0.004
    steep.step_s = lambda n: 0.004 * n
    assert len(flat.candidates()) == 16
    assert len(steep.candidates()) == 1


def test_it_is_updated_by_commits() -> None:
    machine = BestFirst(1, 1, len(PROMPT))
    machine.commit(0, PROMPT)
    for _ in range(150):
        leaves = machine.candidates()[:1]
        machine.record(leaves, [proposal(0.9, 0.06)])
        machine.commit(len(machine.prefix), [101])
    assert machine.calibrator(-math.log(0.9), 1.0, 0) < 0.5 < machine.calibrator(-math.log(0.06), 1.0, 1)


def test_it_starts_with_the_drafts_own_probabilities() -> None:
    for q in (0.9, 0.5, 0.03):
        assert Calibrator()(-math.log(q), 1.0, 0) == pytest.approx(q)


def test_it_corrects_an_overconfident_draft() -> None:
    rng = random.Random(1)
    calibrator = Calibrator()
    for _ in range(400):
        calibrator.observe([-math.log(0.9), -math.log(0.05)], 0.5, 0 if rng.random() < 0.6 else None)
    assert calibrator(-math.log(0.9), 0.5, 0) == pytest.approx(0.6, abs=0.15)
    assert calibrator(-math.log(0.05), 0.5, 1) < 0.05


@pytest.mark.parametrize("hit", [None, 0])
@pytest.mark.parametrize("q", [0.8, 0.5, 0.3])
def test_one_observation_moves_a_probability_by_at_most_a_twentieth(q: float, hit: int | None) -> None:
    calibrator = Calibrator()
    calibrator.observe([-math.log(q)], 1.0, hit)
    moved = calibrator(-math.log(q), 1.0, 0) - q
    assert 0.01 < abs(moved) <= 0.05 and (moved > 0) == (hit is not None)


ODD = [0.0, -1.0, 1e-12, 800.0, 1e300, math.inf, -math.inf, math.nan]


def test_any_numbers_give_probabilities_and_no_lesson_is_more_than_finite() -> None:
    calibrator = Calibrator()
    for cost in ODD:
        for entropy in ODD:
            calibrator.observe([cost, cost], entropy, 1)
            for rank in (0, 9):
                assert 0 <= calibrator(cost, entropy, rank) <= 1
                assert math.isfinite(calibrator.cost(cost, entropy, rank))
    assert 0 < calibrator(0.5, 1.0, 0) < 1


def test_a_huge_entropy_neither_overflows_nor_spoils_what_was_learnt() -> None:
    calibrator = Calibrator()
    for _ in range(50):
        calibrator.observe([0.1], 2**31 / 1000, None)
        assert 0 <= calibrator(0.1, 2**31 / 1000, 0) <= 1
    calibrator.observe([0.1], math.nan, 0)
    before = calibrator(0.1, 1.0, 0)
    calibrator.observe([math.inf], 1.0, 0)
    assert calibrator(0.1, 1.0, 0) == before


CURVE = Curve({1: 0.006, 2: 0.008, 4: 0.013, 16: 0.052})
"""Seconds of a draft step by leaves: a second leaf costs a third of the first, a fourth two fifths."""
TYPICAL = (0.7, 0.15, 0.06, 0.03)
SURE = (0.97, 0.015, 0.005, 0.002)
FLAT = (0.3, 0.25, 0.2, 0.1)
FIRST = (0,)
"""Ranks that are right in turn."""
EITHER = (0, 1)
ALL = (0, 1, 2, 3)


def stated_children(chances: Sequence[float]) -> Proposal:
    return Proposal(list(range(len(chances))), [-math.log(chance) for chance in chances], 1.0)


def answer(calibrator: Calibrator, stated: Sequence[float], right: Sequence[int], tokens: int = 100) -> None:
    """One request in which the target takes the draft's tokens of these ranks in turn."""
    machine = BestFirst(1, 1, 1, calibrator=calibrator, step_s=CURVE)
    machine.commit(0, [9])
    for i in range(tokens):
        machine.record([machine.tree.root], [stated_children(stated)])
        machine.commit(len(machine.prefix), [right[i % len(right)]])


def width(calibrator: Calibrator, stated: Sequence[float]) -> int:
    """Leaves of a request's second step; the root's children are the leaves."""
    machine = BestFirst(2, 1, 1, calibrator=calibrator, step_s=CURVE)
    machine.commit(0, [9])
    machine.record(machine.candidates(), [stated_children(stated)])
    return len(machine.candidates())


@pytest.mark.parametrize(
    ("stated", "before", "right", "after"),
    [
        (TYPICAL, 1, FIRST, 1),
        (TYPICAL, 1, EITHER, 2),
        (TYPICAL, 1, ALL, 4),
        (SURE, 1, FIRST, 1),
        (SURE, 1, EITHER, 2),
        (SURE, 1, ALL, 4),
        (FLAT, 3, FIRST, 1),
        (FLAT, 3, EITHER, 2),
        (FLAT, 3, ALL, 4),
    ],
)
def test_the_width_follows_the_ranks_that_were_right(
    stated: Sequence[float], before: int, right: Sequence[int], after: int
) -> None:
    calibrator = Calibrator()
    assert width(calibrator, stated) == before, "the first request starts from the draft's own probabilities"
    answer(calibrator, stated, right)
    assert width(calibrator, stated) == after


def test_a_request_learns_from_the_requests_before_it() -> None:
    carried = Calibrator()
    fresh = Calibrator()
    for _ in range(5):
        answer(carried, TYPICAL, ALL, tokens=20)
    answer(fresh, TYPICAL, ALL, tokens=20)
    best = [calibrator(-math.log(TYPICAL[0]), 1.0, 0) for calibrator in (carried, fresh)]
    assert abs(best[0] - 0.25) < abs(best[1] - 0.25)


def test_a_worker_that_has_run_for_long_still_follows_another_text() -> None:
    calibrator = Calibrator()
    for _ in range(40):
        answer(calibrator, TYPICAL, EITHER)
    assert width(calibrator, TYPICAL) == 2
    answer(calibrator, TYPICAL, FIRST)
    assert width(calibrator, TYPICAL) == 1
