"""What a live replay reports of its answers: the same ratios as the simulator's, and which answers do not count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as replaced

from edgespec.lab.sim.world import Result
from tools.sim.__main__ import parser
from tools.sim.live import replay
from tools.sim.live.gateway import Reported
from tools.sim.live.replay import Pair, arm_of
from tools.sim.live.setting import Setting
from tools.sim.workers import shared

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


def test_what_each_worker_brought_is_summed_by_its_place_in_the_answer() -> None:
    two = replace(pair(0.5), arm=reported(0.5, 6, brought(30, 14), brought(9, 3)))
    late = replace(pair(0.5), arm=reported(0.5, 5, brought(20, 12)))
    found = replay._row(ARM, replaced(SETTING, workers=2), [two, late], [WORKER, WORKER | {"steps": 20}], 2)
    assert (found["fresh_by_worker"], found["accepted_by_worker"]) == ([50, 9], [26, 3])
    assert (found["accepted_per_round"], found["gateway_passes"]) == (29 / 40, 5.5)
    assert (found["sim_accepted_per_round"], found["sim_gateway_passes"]) == (1.0, 4)
    assert "accepted of each: [26, 3], simulated [22, 14]" in replay.table([found])


@pytest.mark.parametrize("local", [True, False])
def test_the_arms_of_several_workers_are_the_simulators(local: bool) -> None:
    options = parser().parse_args(["replay-live", "--workers", "1", "2", *([] if local else ["--no-local"])])
    one, two = replay._arms(options)
    assert replace(two, local=False) == shared(2) and one.local is two.local is local
    setting = replay._setting(options).of_arm(two, 20.0, 0.0)
    assert (setting.workers, setting.policy.workers_per_request, setting.local) == (2, 2, local)
    assert setting.verify_ms[1] == 10.34 and setting.draft_ms[16] == 3.73, "WANSpec's steps, as `tools.sim workers`"
    assert setting.of_arm(one, 20.0, 0.0).policy.workers_per_request == 1
