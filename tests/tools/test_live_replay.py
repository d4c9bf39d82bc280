"""What a live replay reports of its answers: the same ratios as the simulator's, and which answers do not count."""

from __future__ import annotations

import pytest

from edgespec.lab.sim.world import Result
from tools.sim.live import replay
from tools.sim.live.gateway import Reported
from tools.sim.live.replay import Pair, arm_of
from tools.sim.live.setting import Setting

ARM = arm_of("adaptive")
SETTING = Setting({1: 23.4}, {1: 7.5}, {"match": 0.82}, "", 40).of_arm(ARM, 15.0, 0.0)
WORKER = {"steps": 60, "host_us_per_step": 300.0, "p50_us": 0.1}


def brought(fresh: int, accepted: int) -> dict[str, int]:
    return {"frames": 25, "fresh": fresh, "verified": fresh, "accepted": accepted}


def reported(seconds: float, passes: int, *workers: dict[str, int]) -> Reported:
    accepted = sum(worker["accepted"] for worker in workers)
    return Reported(seconds, 40, True, 20, passes, 50, 0.01, 0.016, 0.0078, accepted, list(workers))


def pair(seconds: float, *, passes: int = 5, waited: float = 0.0) -> Pair:
    sim = Result(0.5, 40, 18, 4, accepted=18, by_worker=[brought(25, 11), brought(12, 7)])
    return Pair(
        reported(1.0, 20), reported(seconds, passes), Result(seconds=1.0, tokens=40, local_passes=20), sim, waited
    )


def row(*pairs: Pair) -> dict[str, object]:
    return replay._row(ARM, SETTING, pairs, [WORKER], 2)


def test_ratios_are_medians_over_answers_and_differences_are_points() -> None:
    found = row(pair(0.5), pair(0.52, passes=6), pair(0.9, passes=7))
    assert (found["latency_ratio"], found["draft_ratio"], found["offload"]) == (0.52, 0.3, 0.7)
    assert (found["sim_latency_ratio"], found["sim_offload"]) == (0.5, 0.8)
    assert found["latency_points"] == pytest.approx(2.0) and found["offload_points"] == pytest.approx(-10.0)
    assert found["engine_host_us_per_round"] == 500.0 and found["worker_host_us_per_step"] == 300.0


def test_contaminated_completions_are_left_out_and_counted() -> None:
    found = row(pair(0.5), pair(0.9, waited=0.2))
    assert (found["latency_ratio"], found["answers"], found["disturbed"]) == (0.5, 1, 1)
    only = row(pair(0.9, waited=0.2), pair(0.8, waited=0.3))
    assert (only["latency_ratio"], only["answers"], only["disturbed"]) == (0.85, 2, 2)
    assert "2 answers were disturbed" in replay.table([only])
