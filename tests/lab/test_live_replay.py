"""What a live replay reports of its answers: the same ratios as the simulator's."""

from __future__ import annotations

import pytest

from edgespec_lab.sim.live import replay
from edgespec_lab.sim.live.gateway import Reported
from edgespec_lab.sim.live.replay import Pair, arm_of
from edgespec_lab.sim.live.setting import Setting
from edgespec_lab.sim.world import Result

ARM = arm_of("adaptive")
SETTING = Setting({1: 23.4}, {1: 7.5}, {"match": 0.82}, "", 40).of_arm(ARM, 15.0, 0.0)
WORKER = {"steps": 60, "host_us_per_step": 300.0, "p50_us": 0.1}


def reported(seconds: float, passes: int) -> Reported:
    return Reported(40, seconds, 20, passes, 90, 0.01, 0.01, 0.0, 40.0, 18, 50)


def pair(seconds: float, *, passes: int = 5, waited: float = 0.0) -> Pair:
    base = Result(seconds=1.0, tokens=40, local_passes=20, rounds=20)
    sim = Result(0.5, 40, 18, 4, accepted=18)
    return Pair(reported(1.0, 20), reported(seconds, passes), base, sim, waited)


def test_ratios_are_medians_over_answers_and_differences_are_points() -> None:
    pairs = [pair(0.5), pair(0.52, passes=6), pair(0.9, passes=7, waited=0.2)]
    found = replay._row(ARM, SETTING, pairs, [WORKER])
    assert (found["latency_ratio"], found["draft_ratio"], found["offload"]) == (0.52, 0.3, 0.7)
    assert (found["sim_latency_ratio"], found["sim_offload"]) == (0.5, 0.8)
    assert found["latency_points"] == pytest.approx(2.0) and found["offload_points"] == pytest.approx(-10.0)
    assert found["engine_host_us_per_round"] == 500.0 and found["worker_host_us_per_step"] == 300.0
    assert (found["accepted_per_round"], found["sim_accepted_per_round"], found["waited_share"]) == (0.9, 1.0, 0.2)
