"""The policies of the papers: WANSpec's Algorithm 1, rule by rule, and the others with their closed forms, against the
figures that the papers print. Times in seconds; nothing here takes any.
"""

from __future__ import annotations

import random

import pytest

from cloud_gateway.core.policies.alone import LocalChain
from cloud_gateway.core.policies.policy import Action, CatchUp, Costs, Draft, LinkView, Outcome, Verify, Wait
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.policies.wanspec import WanSpec
from cloud_gateway.core.verify.candidates import CandidateTree, Merged
from edgespec.core.drafting.tree import Node
from edgespec_lab.sim.theory import best_k, expected_tokens

R = 0.020
TD = 0.006
TT = 0.026
LINK = LinkView(rtt_s=R, rtt_high_s=R, step_s=TD, ready=True)
LOCAL = Costs(verify_s=lambda rows: TT, local_step_s=TD, batch_backlog_s=5 * TD)
NO_LOCAL = Costs(verify_s=lambda rows: TT)
USEFUL = Merged(fresh=1)


def tree_of(depth: int) -> CandidateTree:
    tree = CandidateTree([1, 2, 3])
    node: Node = tree.root
    for token in range(depth):
        node = tree.add_local(node, token, 0.1, 0.2)
    return tree


def running(k: int = 2, phi: float = 0.5, **more: int) -> WanSpec:
    """A controller in the middle of an answer: the last useful frame came at time 0."""
    policy = WanSpec(PolicySettings(k=k, phi=phi, **more))
    policy.received(USEFUL, 0.0)
    return policy


def rest_of(action: Action) -> float:
    assert isinstance(action, Wait)
    return action.until


def test_it_verifies_as_soon_as_the_tree_is_k_deep() -> None:
    assert isinstance(running(k=2).decide(tree_of(1), LINK, LOCAL, 0.001), Wait)
    action = running(k=2).decide(tree_of(2), LINK, LOCAL, 0.001)
    assert isinstance(action, Verify) and len(action.nodes) == 2


def test_the_whole_tree_at_hand_is_verified_unless_a_depth_limit_is_set() -> None:
    deep = running(k=2).decide(tree_of(5), LINK, LOCAL, 0.0)
    cut = running(k=2, depth=2).decide(tree_of(5), LINK, LOCAL, 0.0)
    few = running(k=2, verify_nodes=3).decide(tree_of(5), LINK, LOCAL, 0.0)
    assert [len(a.nodes) for a in (deep, cut, few) if isinstance(a, Verify)] == [5, 2, 3]


def test_without_a_local_draft_target_steps_fill_the_time() -> None:
    policy = running()
    policy.verified(Outcome(2, 1, at_leaf=False, entropy=0.0), 1.0)
    assert isinstance(policy.decide(tree_of(0), LINK, NO_LOCAL, 1.0), Verify), "26 ms fit into R + Td"
    assert rest_of(policy.decide(tree_of(0), LINK, NO_LOCAL, 1.005)) == pytest.approx(1.0 + R + TD)


def test_a_silent_worker_costs_one_wait_until_its_next_frame() -> None:
    policy = running()
    policy.verified(Outcome(2, 3, at_leaf=True, entropy=0.0), 1.0)
    until = rest_of(policy.decide(tree_of(0), LINK, LOCAL, 1.0))
    assert until - 1.0 <= R + TT, "a missed frame costs at most a round trip and a target step"
    assert isinstance(policy.decide(tree_of(0), LINK, LOCAL, until), Draft)
    policy.verified(Outcome(2, 3, at_leaf=True, entropy=0.0), until + 0.05)
    assert isinstance(policy.decide(tree_of(0), LINK, LOCAL, until + 0.2), Draft), "still silent: no second wait"
    policy.received(USEFUL, until + 0.3)
    assert isinstance(policy.decide(tree_of(0), LINK, LOCAL, until + 0.3), Wait)
    assert policy.fallbacks == 1


def test_frames_off_the_committed_path_do_not_count_as_signs_of_life() -> None:
    policy = running()
    until = rest_of(policy.decide(tree_of(0), LINK, LOCAL, 1.0))
    policy.received(Merged(stale=3), until - 0.001)
    assert isinstance(policy.decide(tree_of(0), LINK, LOCAL, until), Draft)


def test_while_the_worker_reads_the_prompt_the_target_goes_on_alone() -> None:
    reading = LinkView(R, R, TD, ready=False)
    behind = Costs(lambda rows: TT, local_step_s=TD, local_backlog_s=0.4, batch_backlog_s=0.03)
    action = WanSpec().decide(tree_of(0), reading, behind, 0.0)
    assert isinstance(action, Verify) and not action.nodes
    assert isinstance(WanSpec().decide(tree_of(0), reading, LOCAL, 0.0), Draft), "a caught-up local draft is as good"


def test_without_a_worker_it_is_standard_speculation_with_the_same_k() -> None:
    policy = WanSpec(PolicySettings(k=3))
    assert isinstance(policy.decide(tree_of(2), None, LOCAL, 0.0), Draft)
    assert isinstance(policy.decide(tree_of(3), None, LOCAL, 0.0), Verify)


def test_with_neither_worker_nor_local_draft_it_is_plain_decoding() -> None:
    action = WanSpec(PolicySettings(k=3)).decide(tree_of(0), None, NO_LOCAL, 0.0)
    assert isinstance(action, Verify) and not action.nodes


def test_a_long_catch_up_alternates_with_target_steps() -> None:
    chain = LocalChain(2)
    backlogs = [0.30, 0.28, 0.26]
    behind = [Costs(lambda rows: TT, TD, backlog, batch_backlog_s=0.03) for backlog in backlogs]
    actions = [chain.draft(tree_of(0), costs) for costs in behind]
    assert [type(action) for action in actions] == [CatchUp, Verify, CatchUp]
    assert isinstance(chain.draft(tree_of(0), LOCAL), Draft)


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
