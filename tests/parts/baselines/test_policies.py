"""The policies with which others are compared, rule by rule. Times in seconds; nothing here takes any."""

from __future__ import annotations

import pytest

from cloud_gateway.core.policies.policy import Costs, Draft, LinkView, Outcome, Verify, Wait
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.verify.candidates import CandidateTree, Merged
from cloud_gateway.parts.baselines.amusd import Amusd
from cloud_gateway.parts.baselines.colocated import Colocated, ColocatedTree
from cloud_gateway.parts.baselines.rolling_k import RollingK, RollingWanSpec

COSTS = Costs(lambda rows: 0.025, 0.010)
NEAR = LinkView(0.0, 0.0, 0.010, ready=True)


def test_a_chain_is_drafted_to_k_and_then_verified() -> None:
    policy = Colocated(PolicySettings(k=2))
    tree = CandidateTree([1, 2])
    assert isinstance(policy.decide(tree, NEAR, COSTS, 0.0), Draft), "whatever worker there is"
    node = tree.add_local(tree.root, 3, 0.1, 0.1)
    assert isinstance(policy.decide(tree, NEAR, COSTS, 0.0), Draft)
    tree.add_local(node, 4, 0.1, 0.1)
    action = policy.decide(tree, NEAR, COSTS, 0.0)
    assert isinstance(action, Verify) and len(action.nodes) == 2


def test_amusd_verifies_what_there_is_and_waits_otherwise() -> None:
    policy = Amusd()
    tree = CandidateTree([1, 2])
    assert isinstance(policy.decide(tree, NEAR, COSTS, 0.0), Wait)
    tree.add_local(tree.root, 3, 0.1, 0.1)
    action = policy.decide(tree, NEAR, COSTS, 0.01)
    assert isinstance(action, Verify) and len(action.nodes) == 1


def test_amusd_does_not_wait_for_a_silent_worker_for_ever() -> None:
    policy = Amusd()
    tree = CandidateTree([1, 2])
    waiting = policy.decide(tree, NEAR, COSTS, 0.0)
    assert isinstance(waiting, Wait)
    assert isinstance(policy.decide(tree, NEAR, COSTS, waiting.until), Verify)


@pytest.mark.parametrize(
    ("rate", "start", "after"), [(0.95, 5, 6), (0.85, 5, 5), (0.7, 5, 4), (0.7, 3, 3), (0.5, 5, 3), (0.5, 2, 1)]
)
def test_rolling_k_moves_as_the_post_says(rate: float, start: int, after: int) -> None:
    rolling = RollingK(start=start)
    for _ in range(RollingK.WARM_UP - 1):
        rolling.update(round(rate * 100), 100)
        assert rolling.k == start, "not enough data"
    rolling.update(round(rate * 100), 100)
    assert rolling.k == after


def test_rolling_k_sets_algorithm_1() -> None:
    policy = RollingWanSpec(PolicySettings(k=5), rolling=RollingK(start=5))
    tree = CandidateTree([1, 2])
    assert isinstance(policy.decide(tree, None, COSTS, 0.0), Draft)
    for _ in range(10):
        policy.verified(Outcome(5, 1, False, 0.1), 0.0)
    policy.received(Merged(), 0.0)
    policy.decide(tree, None, COSTS, 0.0)
    assert policy.k == 3


def test_the_local_tree_takes_k_passes_and_then_verifies() -> None:
    policy = ColocatedTree(PolicySettings(k=2, verify_nodes=3))
    tree = CandidateTree([1, 2])
    first = policy.decide(tree, NEAR, COSTS, 0.0)
    assert isinstance(first, Draft) and first.width == 4
    children = [tree.add_local(tree.root, token, 0.1 * token, 1.0) for token in range(3)]
    second = policy.decide(tree, NEAR, COSTS, 0.0)
    assert isinstance(second, Draft) and set(second.leaves) == set(children)
    tree.add_local(children[0], 9, 0.1, 1.0)
    action = policy.decide(tree, NEAR, COSTS, 0.0)
    assert isinstance(action, Verify) and len(action.nodes) == 3
