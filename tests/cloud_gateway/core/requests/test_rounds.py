"""The bounds of a round: a policy that never verifies is stopped by passes or by time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from cloud_gateway.core.policies.alone import Plain
from cloud_gateway.core.policies.policy import CatchUp, Costs, Draft, Outcome, Verify, Wait
from cloud_gateway.core.requests.pace import NO_TIME, Span
from cloud_gateway.core.requests.rounds import MAX_LOCAL_PASSES, MAX_ROUND_S, Rounds
from cloud_gateway.core.verify.candidates import CandidateTree
from tests.cloud_gateway.core.requests.test_generation import PROMPT


def bounded(actions: Callable[[int], Draft | CatchUp | Wait], step_s: float) -> tuple[int, float]:
    """How often a policy that never verifies is obeyed, and how long."""
    rounds = Rounds(4)
    tree = CandidateTree(PROMPT)
    tree.add_local(tree.root, 7, 0.1, 0.1)
    for number in range(10_000):
        action = rounds.bound(actions(number), tree, number * step_s)
        if isinstance(action, Verify):
            assert [node.token for node in action.nodes] == [7]
            return number, number * step_s
        assert not isinstance(action, Wait) or action.until <= MAX_ROUND_S
    raise AssertionError("no end")


@pytest.mark.claim("no-tree-makes-a-request-fault-or-a-round-endless")
@pytest.mark.claim("a-local-tree-makes-at-most-k-passes-a-round")
def test_a_policy_that_drafts_without_end_is_stopped_by_passes_or_time() -> None:
    assert bounded(lambda number: Draft(()), 0.0)[0] == MAX_LOCAL_PASSES
    assert bounded(lambda number: CatchUp(), 0.0)[0] == MAX_LOCAL_PASSES
    assert bounded(lambda number: Draft(()), 0.5)[1] == MAX_ROUND_S


@pytest.mark.parametrize("until", [float("inf"), float("nan"), 1e9])
def test_a_policy_that_waits_for_ever_is_woken(until: float) -> None:
    assert bounded(lambda number: Wait(until), 0.25)[1] == MAX_ROUND_S


def test_the_budget_starts_again_each_round() -> None:
    rounds = Rounds(4)
    tree = CandidateTree(PROMPT)
    for _ in range(3):
        for _ in range(MAX_LOCAL_PASSES):
            assert isinstance(rounds.bound(Draft(()), tree, 1.0), Draft)
        assert isinstance(rounds.bound(Draft(()), tree, 1.0), Verify)
        rounds.ended(Outcome(0, 1, True, 0.0), 1.0)


def test_a_rounds_time_leaves_out_prompts_that_were_read_meanwhile() -> None:
    rounds = Rounds(4)
    tree = CandidateTree(PROMPT)
    costs = Costs(lambda rows: 0.1)
    rounds.decide(Plain(), tree, None, costs, 0.9)
    rounds.ended(Outcome(0, 1, True, None), 1.0)
    assert rounds.span == NO_TIME, "nobody knows when the first round began"
    rounds.decide(Plain(), tree, None, replace(costs, paused_s=0.3), 1.4)
    rounds.ended(Outcome(1, 2, True, None), 1.5)
    assert rounds.span == pytest.approx(Span(2, 0.2, 0.2))
