"""Workers that are wrong, slow or late, beside the same gateway alone, completion after completion (simulated)."""

from __future__ import annotations

import pytest

from cloud_gateway.core.policies.registry import POLICIES
from edgespec_lab.sim import sweep
from edgespec_lab.sim.config import load
from edgespec_lab.sim.experiment import Arm, Cell, simulate
from edgespec_lab.sim.sweep import Place
from edgespec_lab.sim.world import Result

CONFIG = load("sweep")


def ratios(place: Place, prefer: str = "latency", runs: int = 8) -> tuple[float, list[float]]:
    """Times of all completions together, and of each, to the same gateway alone."""
    row = sweep.measure_worst(place, CONFIG | {"worst": CONFIG["worst"] | {"prefer": [prefer]}}, runs, POLICIES)
    return row[prefer]["all"], row[prefer]["each"]


WRONG = Place("q4_0", 0.3, 0.98, 20.0, beside="wrong")


@pytest.mark.claim("a-wrong-worker-leaves-the-local-draft-its-worth")
@pytest.mark.parametrize("prefer", ["latency", "balanced"])
def test_a_worker_that_is_always_wrong_costs_little_and_less(prefer: str) -> None:
    together, each = ratios(WRONG, prefer, runs=10)
    assert together <= 1.07, "1.9 when its misses were counted as the local draft's"
    assert sum(each[4:]) / 6 <= 1.05, "what is carried keeps no damage"


def test_a_slow_worker_does_not_delay_the_reading_of_the_prompt() -> None:
    together, _ = ratios(Place("q4_0", 0.3, 0.98, 20.0, slower=10.0))
    assert together <= 1.05, "1.12 when each batch took turns with a plain step"


def test_a_right_worker_helps_beside_a_poor_local_draft() -> None:
    together, _ = ratios(Place("q4_0", 0.3, 0.9, 20.0, beside="right", local_match=0.05), runs=4)
    assert together < 0.7


def test_a_new_right_worker_helps_beside_one_that_is_wrong() -> None:
    together, _ = ratios(Place("q4_0", 0.3, 0.98, 20.0, beside="wrong right"), runs=4)
    assert together < 1.0


def test_a_worker_that_is_right_again_comes_back() -> None:
    together, each = ratios(Place("q4_0", 0.3, 0.98, 20.0, beside="wrong", changes_after=3), runs=10)
    assert min(each[5:]) < 0.95 and sum(each[6:]) / 4 < 0.97, (together, each)


def drafted(workers: str) -> Result:
    place = Place("flat", 0.1, 0.9, 0.0, beside=workers)
    kinds = tuple(sweep.DRAFTS[name](place.match) for name in workers.split())
    arm = Arm("w", "wanspec", sweep.WORKER, local=False)
    steps = sweep.steps_at(place, CONFIG)
    cell = Cell(arm, sweep.DRAFTS["right"](place.match), sweep.LinkModel(0.0), steps, runs=1, workers=kinds)
    return simulate(cell, POLICIES)[0]


def test_worker_and_local_draft_are_two_processes_of_tokens() -> None:
    assert drafted("wrong").accepted == 0 < drafted("right").accepted
    assert drafted("right").by_worker != drafted("").by_worker, "independent of the gateway's own draft"
