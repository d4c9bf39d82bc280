"""The learnt limit on the target's entropy in the simulator: when it acts, and what it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_gateway.core.policies.adaptive import Adaptive
from cloud_gateway.core.policies.entropy import CENTRE, PathOdds
from cloud_gateway.core.policies.policy import Policy
from edgespec_lab.choices import gateway_choices
from edgespec_lab.link_model import LinkModel
from edgespec_lab.sim import entropy
from edgespec_lab.sim import process as processes
from edgespec_lab.sim.config import load
from edgespec_lab.sim.experiment import Arm, Simulator, WorkerSpec
from edgespec_lab.sim.sweep import Place, steps_at
from edgespec_lab.sim.tokens import Recorded
from edgespec_lab.sim.world import Result, run
from tests.support.served import compares

NARROW = WorkerSpec("algorithm2", 2, 0.5, 4)
POLICIES = gateway_choices().policies
PLACE = Place("q4_0", 0.06, 0.0, 40.0)
TOKENS = 80


def simulated(arm: Arm, runs: int = 3, *, flat_entropy: bool = False) -> list[tuple[Policy, Result]]:
    """Completions in a row, with their policies."""
    steps = steps_at(PLACE, load("sweep"))
    kind = Recorded("without-14", flat_entropy=flat_entropy)
    found: list[tuple[Policy, Result]] = []
    for seed in range(runs):
        controller = arm.controller(POLICIES, found[-1][0].state() if found else None)
        drafting = [arm.worker.make(2, steps.worker)] if arm.worker else []
        process = kind.make(seed, TOKENS)
        found.append((controller, run(controller, drafting, process, LinkModel(0.01), steps, TOKENS, seed)))
    return found


def test_the_limit_acts_by_default_on_recorded_tokens() -> None:
    found = simulated(Arm("learnt", "adaptive", NARROW, prefer="latency"))
    limits = [policy.learnt_phi for policy, _ in found]
    assert sum(limit.leaves for limit in limits if limit is not None) >= 5
    assert sum(limit.above for limit in limits if limit is not None) >= 2
    last = found[-1][0]
    assert isinstance(last, Adaptive) and last.worker.odds.state() != PathOdds().state()


def test_it_changes_nothing_else_than_when_the_gateway_waits() -> None:
    off = simulated(Arm("off", "adaptive", NARROW, phi=100.0, prefer="latency"))
    learnt = simulated(Arm("learnt", "adaptive", NARROW, prefer="latency"))
    assert [result.tokens for _, result in off] == [result.tokens for _, result in learnt]
    assert [result.seconds for _, result in off] != [result.seconds for _, result in learnt]


@pytest.mark.parametrize(
    ("arm", "least", "most"),
    [
        (Arm("plain", "plain"), 0.0, 0.0),
        pytest.param(Arm("co-located", "colocated"), 0.0, 0.0, marks=compares),
        (Arm("co-located", "adaptive"), 0.0, 0.0),
        (Arm("learnt", "adaptive", NARROW, prefer="latency"), 0.1, 0.6),
        (Arm("wanspec", "wanspec", NARROW), 0.1, 0.9),
    ],
    ids=["plain", "co-located", "adaptive alone", "adaptive", "wanspec"],
)
def test_the_entropy_is_computed_only_where_a_policy_reads_it(
    arm: Arm, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    entropy_of = processes.ProcessRows.entropy
    monkeypatch.setattr(
        processes.ProcessRows, "entropy", lambda rows, row: (asked.append(row), entropy_of(rows, row))[1]
    )
    rounds = sum(result.rounds for _, result in simulated(arm))
    assert least <= len(asked) / rounds <= most


def test_a_flat_recording_has_one_entropy_and_the_same_tokens() -> None:
    flat, whole = (Recorded("without-14", flat_entropy=flat).make(1, 50) for flat in (True, False))
    assert flat.targets == whole.targets and set(flat.target_entropies) == {CENTRE} != set(whole.target_entropies)


def test_the_figure_has_all_arms_of_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load("phi")
    small = {"drafts": ["without-14"], "ratio": [0.3], "rtt_ms": [10], "prefer": ["latency"], "tokens": 12, "runs": 1}
    changed = config | {"run": config["run"] | small}
    monkeypatch.setattr(entropy, "load", lambda name: changed if name == "phi" else load(name))
    found = entropy.phi(tmp_path / "phi.json", Simulator(POLICIES, processes=1))
    assert [row["worker"] for row in found["rows"]] == list(config["workers"])
    assert all(row["learnt"] > 0 and row["constant"] > 0 for row in found["rows"])
    assert len(found["text"].splitlines()) == 1 + 3 + 1 and (tmp_path / "phi.svg").exists()
