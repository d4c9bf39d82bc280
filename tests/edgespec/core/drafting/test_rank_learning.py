"""What commits show of each rank decides how wide a worker drafts, whatever probabilities its draft states."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.best_first import BestFirst
from edgespec.core.drafting.calibration import Calibrator
from edgespec.lab.sim.steps import Curve

CURVE = Curve({1: 0.006, 2: 0.008, 4: 0.013, 16: 0.052})
"""Seconds of a draft step by leaves: a second leaf costs a third of the first, a fourth two fifths."""
TYPICAL, SURE, FLAT = (0.7, 0.15, 0.06, 0.03), (0.97, 0.015, 0.005, 0.002), (0.3, 0.25, 0.2, 0.1)
FIRST = (0,)
"""Ranks that are right in turn."""
EITHER = (0, 1)
ALL = (0, 1, 2, 3)


def proposal(chances: Sequence[float]) -> Proposal:
    return Proposal(list(range(len(chances))), [-math.log(chance) for chance in chances], 1.0)


def answer(calibrator: Calibrator, stated: Sequence[float], right: Sequence[int], tokens: int = 100) -> None:
    """One request in which the target takes the draft's tokens of these ranks in turn."""
    machine = BestFirst(1, 1, 1, calibrator=calibrator, step_s=CURVE)
    machine.commit(0, [9])
    for i in range(tokens):
        machine.record([machine.tree.root], [proposal(stated)])
        machine.commit(len(machine.prefix), [right[i % len(right)]])


def width(calibrator: Calibrator, stated: Sequence[float]) -> int:
    """Leaves of a request's second step, where the root's children are the leaves."""
    machine = BestFirst(2, 1, 1, calibrator=calibrator, step_s=CURVE)
    machine.commit(0, [9])
    machine.record(machine.candidates(), [proposal(stated)])
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
    carried, fresh = Calibrator(), Calibrator()
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
