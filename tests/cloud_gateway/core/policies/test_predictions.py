"""Decisions of policy `adaptive` that a reader of docs/adaptive.md computes by hand."""

from __future__ import annotations

import math

import pytest

from cloud_gateway.core.policies.adaptive import Adaptive
from cloud_gateway.core.policies.policy import Action, Costs, Draft, LinkView, Outcome, Verify, Wait
from cloud_gateway.core.policies.settings import PolicySettings, Prefer
from cloud_gateway.core.verify.candidates import CandidateTree

PASS_S = 0.1


def decision(
    costs: Costs, rtt_s: float | None = None, prefer: Prefer = "latency", chances: tuple[float, ...] = ()
) -> Action:
    """The first decision of a completion: a chain of candidates, and a worker whose step takes 10 ms."""
    tree = CandidateTree([1, 2])
    node = tree.root
    for token, chance in enumerate(chances):
        added = tree.add_local(node, token, -math.log(chance), 1.0)
        assert added is not None
        node = added

    link = None
    if rtt_s is not None:
        link = LinkView(rtt_s, rtt_s, 0.01, ready=True)
    return Adaptive(PolicySettings(prefer=prefer)).decide(tree, link, costs, 0.0)


def flat(local_step_s: float | None = None) -> Costs:
    """A pass of 100 ms over any number of rows."""
    return Costs(lambda rows: PASS_S, local_step_s)


@pytest.mark.parametrize(("step_s", "drafts"), [(0.010, True), (0.094, True), (0.096, False)])
def test_a_draft_pays_below_95_percent_of_a_tokens_price(step_s: float, drafts: bool) -> None:
    assert isinstance(decision(flat(step_s)), Draft) is drafts


def test_a_pass_goes_to_what_candidates_leave() -> None:
    action = decision(flat(0.010), chances=(0.2,))
    assert isinstance(action, Draft) and [leaf.position for leaf in action.leaves] == [1, 2]


@pytest.mark.parametrize(("chance", "reopened"), [(0.1, True), (0.2, False)])
def test_what_workers_find_unlikely_is_drafted_again(chance: float, reopened: bool) -> None:
    tree = CandidateTree([1, 2])
    for token in range(4):
        node = tree.add_local(tree.root, token, -math.log(chance), 1.0)
        assert node is not None
        node.remote = True
    action = Adaptive(PolicySettings(prefer="latency")).decide(tree, None, flat(0.010), 0.0)
    assert isinstance(action, Draft) and (tree.root in action.leaves) is reopened


@pytest.mark.parametrize(("third", "verified"), [(0.2, 2), (0.4, 3)])
def test_a_candidate_pays_if_its_chance_covers_its_row(third: float, verified: int) -> None:
    action = decision(Costs(lambda rows: PASS_S + 0.02 * rows), chances=(0.9, 0.5, third))
    assert isinstance(action, Verify) and len(action.nodes) == verified


def test_a_near_worker_is_waited_for_until_its_frame_is_due() -> None:
    assert decision(flat(), 0.020) == Wait(pytest.approx(0.035))


def test_a_far_worker_is_waited_for_up_to_383_ms() -> None:
    assert decision(flat(), 0.365) == Wait(pytest.approx(0.380))
    assert decision(flat(), 0.372) == Verify([])


def test_only_balanced_leaves_the_first_pass_to_the_worker() -> None:
    assert decision(flat(0.010), 0.020, "balanced") == Wait(pytest.approx(0.035))
    assert isinstance(decision(flat(0.010), 0.020, "latency"), Draft)


def test_balanced_drafts_while_its_credit_is_above_zero() -> None:
    policy = Adaptive(PolicySettings(prefer="balanced"))
    tree = CandidateTree([1, 2])
    link = LinkView(0.02, 0.02, 0.01, ready=True)
    assert isinstance(policy.decide(tree, link, flat(0.010), 0.0), Wait)

    tree.advance([7])
    policy.verified(Outcome(0, 1, True, None, tree.root.position), 0.029)
    assert isinstance(policy.decide(tree, link, flat(0.010), 0.030), Draft)

    # That pass overdrew the credit, which three tokens more do not make good.
    for token in range(3):
        tree.advance([7])
        policy.verified(Outcome(0, 1, True, None, tree.root.position), 0.06 + 0.03 * token)
        assert not isinstance(policy.decide(tree, link, flat(0.010), 0.061 + 0.03 * token), Draft)


@pytest.mark.parametrize(
    ("token_s", "prefer", "left_at"),
    [(0.200, "latency", 3), (0.105, "latency", 8), (0.105, "balanced", None)],
)
def test_the_guard_leaves_a_worker_after_so_many_tokens(token_s: float, prefer: Prefer, left_at: int | None) -> None:
    policy = Adaptive(PolicySettings(prefer=prefer))
    tree = CandidateTree([1, 2])
    link = LinkView(0.02, 0.02, 0.01, ready=True)
    changes = []
    now = 0.0
    for token in range(16):
        policy.decide(tree, link, flat(), now)
        if policy.change is not None:
            changes.append((token, *policy.change))
        now += token_s if policy.guard.mode == "normal" else PASS_S
        tree.advance([7])
        policy.verified(Outcome(0, 1, True, None, tree.root.position), now)
    assert changes == ([] if left_at is None else [(left_at, "alone", "slower")])


@pytest.mark.parametrize(("now", "expected"), [(0.036, Wait(0.055)), (0.056, Verify([]))])
def test_an_overdue_worker_is_waited_for_two_levels_more(now: float, expected: Action) -> None:
    policy = Adaptive(PolicySettings(prefer="latency"))
    tree = CandidateTree([1, 2])
    link = LinkView(0.02, 0.02, 0.01, ready=True)
    policy.decide(tree, link, flat(), 0.0)
    action = policy.decide(tree, link, flat(), now)
    if isinstance(action, Wait):
        assert isinstance(expected, Wait) and action.until == pytest.approx(expected.until)
    else:
        assert action == expected
