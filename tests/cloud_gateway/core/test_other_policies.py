"""The policies of the other papers, and their closed forms, against the figures that the papers print."""

from __future__ import annotations

import random

import pytest

from cloud_gateway.core.policies.baselines import Amusd, ColocatedTree
from cloud_gateway.core.policies.policy import Costs, Draft, LinkView, Outcome, Verify, Wait
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.policies.wanspec import RollingK, RollingWanSpec
from cloud_gateway.core.verify.candidates import CandidateTree, Merged
from tools.sim.theory import best_k, expected_tokens

COSTS = Costs(lambda rows: 0.025, 0.010)
LINK = LinkView(0.0, 0.0, 0.010, ready=True)


def test_amusd_verifies_what_there_is_and_waits_otherwise() -> None:
    policy, tree = Amusd(), CandidateTree([1, 2])
    assert isinstance(policy.decide(tree, LINK, COSTS, 0.0), Wait)
    tree.add_local(tree.root, 3, 0.1, 0.1)
    action = policy.decide(tree, LINK, COSTS, 0.01)
    assert isinstance(action, Verify) and len(action.nodes) == 1


def test_amusd_does_not_wait_for_a_silent_worker_for_ever() -> None:
    policy, tree = Amusd(), CandidateTree([1, 2])
    waiting = policy.decide(tree, LINK, COSTS, 0.0)
    assert isinstance(waiting, Wait)
    assert isinstance(policy.decide(tree, LINK, COSTS, waiting.until), Verify)


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
    policy, tree = RollingWanSpec(PolicySettings(k=5), rolling=RollingK(start=5)), CandidateTree([1, 2])
    assert isinstance(policy.decide(tree, None, COSTS, 0.0), Draft)
    for _ in range(10):
        policy.verified(Outcome(5, 1, False, 0.1), 0.0)
    policy.received(Merged(), 0.0)
    policy.decide(tree, None, COSTS, 0.0)
    assert policy.k == 3


def test_the_local_tree_takes_k_passes_and_then_verifies() -> None:
    policy, tree = ColocatedTree(PolicySettings(k=2, verify_nodes=3)), CandidateTree([1, 2])
    first = policy.decide(tree, LINK, COSTS, 0.0)
    assert isinstance(first, Draft) and first.width == 4
    children = [tree.add_local(tree.root, token, 0.1 * token, 1.0) for token in range(3)]
    second = policy.decide(tree, LINK, COSTS, 0.0)
    assert isinstance(second, Draft) and set(second.leaves) == set(children)
    tree.add_local(children[0], 9, 0.1, 1.0)
    action = policy.decide(tree, LINK, COSTS, 0.0)
    assert isinstance(action, Verify) and len(action.nodes) == 3


def test_expected_tokens_are_those_of_a_million_coins() -> None:
    rng = random.Random(3)
    for alpha, k in ((0.3, 1), (0.8, 2), (0.9, 7)):
        total = 0
        for _ in range(40_000):
            run = 0
            while run < k and rng.random() < alpha:
                run += 1
            total += run + 1
        assert expected_tokens(alpha, k) == pytest.approx(total / 40_000, rel=0.02)


def test_the_best_k_grows_with_acceptance_and_falls_with_the_drafts_cost() -> None:
    ks = [best_k(alpha, 2, 15, 0.5) for alpha in (0.6, 0.7, 0.8, 0.9)]
    assert ks == sorted(ks) and ks[0] < ks[-1]
    assert best_k(0.8, 4, 15, 0.5) < best_k(0.8, 2, 15, 0.5)
