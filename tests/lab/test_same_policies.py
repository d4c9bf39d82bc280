"""One policy, two drivers: simulator and live system run the same objects, so that a change of one changes both."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import cloud_gateway.engine.loop
import edgespec.worker.daemon
import tools.doubles.workers
from cloud_gateway.core.policies import registry
from cloud_gateway.core.policies.policy import Verify
from cloud_gateway.core.policies.registry import POLICIES
from cloud_gateway.core.policies.wanspec import WanSpec
from cloud_gateway.core.requests.request import GenerationRequest, Speculation, Usage
from edgespec.core.drafting import algorithm2 as drafting
from edgespec.core.drafting import best_first
from edgespec.core.drafting import best_first as bestfirst
from edgespec.core.drafting.algorithm2 import Drafting, Proposal
from edgespec.core.drafting.tree import Node
from edgespec_lab.link_model import LinkModel
from edgespec_lab.sim import experiment, world
from edgespec_lab.sim.experiment import Arm, Cell, WorkerSpec, simulate
from edgespec_lab.sim.tokens import Iid
from edgespec_lab.sim.world import Curve, Result, Steps
from tests.support.engines import complete, engines
from tools.doubles.engines import TableDraft
from tools.doubles.workers import LoopWorker

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
pytestmark = pytest.mark.driven
STEPS = Steps(Curve({1: 0.010}), Curve({1: 0.004}), Curve({1: 0.004}), catch_up_s=0.0)


def simulated(policy: str, worker: WorkerSpec | None = None) -> Result:
    """One answer in the simulator."""
    return simulate(Cell(Arm(policy, policy, worker), Iid(), LinkModel(0.004), STEPS, tokens=60, runs=1), POLICIES)[0]


async def live(policy: str, worker: LoopWorker | None = None) -> Usage:
    """One answer of the real engine with the model that is a hash function."""
    request = GenerationRequest(PROMPT, 60, ignore_eos=True, speculation=Speculation(policy))
    with engines() as start:
        return (await complete(start(worker, TableDraft(0.7)), request))[1].usage


def test_engine_and_simulator_take_policies_from_one_registry() -> None:
    assert cloud_gateway.engine.loop.registry is registry
    assert experiment.make is cloud_gateway.engine.loop.registry.make is registry.make
    assert experiment.PolicySettings is cloud_gateway.engine.loop.PolicySettings


def test_worker_and_simulator_draft_with_the_same_machines() -> None:
    assert edgespec.worker.daemon.Drafting is experiment.Drafting is world.Drafting is drafting.Drafting
    assert (
        best_first.BestFirst is experiment.BestFirst is bestfirst.BestFirst
        and edgespec.worker.daemon.Starts is best_first.Starts
    )
    for name, module in (("Generation", "requests.generation"), ("StepClock", "policies.estimators")):
        assert getattr(world, name).__module__ == f"cloud_gateway.core.{module}"


async def test_a_change_inside_a_policy_changes_both_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the registry is shared: the class in it is, however the object was made."""
    before = simulated("wanspec")
    before_live = await live("wanspec")
    monkeypatch.setattr(WanSpec, "_verify", lambda self, tree: Verify(()))
    after = simulated("wanspec")
    after_live = await live("wanspec")
    assert after.rounds == after_live.rounds == 60
    assert before.rounds < 60 and before_live.rounds < 60


async def test_a_change_of_algorithm_2_changes_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(self: Drafting, candidates: Sequence[Node], proposals: Sequence[Proposal]) -> None:
        for node in candidates:
            node.expanded = True

    assert tools.doubles.workers.Drafting is drafting.Drafting
    before = simulated("wanspec", WorkerSpec())
    before_live = await live("wanspec", LoopWorker(0.001, 0.9))
    monkeypatch.setattr(drafting.Drafting, "record", blind)
    after = simulated("wanspec", WorkerSpec())
    after_live = await live("wanspec", LoopWorker(0.001, 0.9))
    assert before.useful_frames > 0 == after.frames
    assert before_live.accepted.get("worker", 0) > 0 == after_live.frames["received"]
