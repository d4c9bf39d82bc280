"""Trees that pass the shape checks, under every policy: no request faults, every round ends. No thread, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from cloud_gateway.core.policies.actions import CatchUp, Draft, Verify, Wait
from cloud_gateway.core.policies.registry import POLICIES
from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.core.requests.rounds import MAX_LOCAL_PASSES, MAX_ROUND_S, RoundBudget
from cloud_gateway.core.requests.router import LinkedWorker
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.engine.loop import Engine
from edgespec.core.protocol.messages import MAX_COST, Sampling, Tree, check_tree_shape, max_entropy
from edgespec.core.protocol.prefix import prefix_hash
from tests.support.engines import engine_settings
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.model import VOCAB, next_logits
from tools.doubles.workers import OneWorker

PROMPT, COUNT = [3, 1, 4, 1, 5], 24
COSTS = st.sampled_from([0, 1, 40, 700, 5000, MAX_COST])
ENTROPIES = st.sampled_from([0, 1, 700, max_entropy(VOCAB)])


@dataclass
class Frame:
    """A frame to be made from whatever is true when it is sent."""

    late: int
    """Tokens that the worker does not know yet."""
    nodes: list[tuple[int, bool, int, int, int]]
    """Parent (counted back from the node), whether the token is right, otherwise which, cost and entropy."""


nodes = st.tuples(st.integers(0, 3), st.sampled_from([True, True, False]), st.integers(0, VOCAB - 1), COSTS, ENTROPIES)
frames = st.lists(st.builds(Frame, st.integers(0, 3), st.lists(nodes, min_size=1, max_size=20)), min_size=1, max_size=8)


class Turned:
    """An engine that is turned by hand, on a clock that each look moves on a little."""

    def __init__(self, policy: str, sampling: Sampling, verification: str) -> None:
        self.now = 0.0
        self.workers = OneWorker(LinkedWorker("w", 0.02, 0.03, 0.004, paused=False), returns=True)
        chosen = engine_settings(policy=policy, k=4, verification=verification)
        local = TableDraft(0.7, leaves=8)
        self.engine = Engine(TableTarget(pass_s=0.0), local, chosen, self.workers, clock=self.clock)
        self.engine.submit(GenerationRequest(PROMPT, COUNT, sampling=sampling, ignore_eos=True))
        self.first = 1

    def clock(self) -> float:
        self.now += 0.0005
        return self.now

    def turn(self) -> bool:
        """One turn; whether the request goes on."""
        wake = self.engine.turn()
        if wake is not None:
            self.now = max(self.now, wake)
        return self.engine.active > 0

    def send(self, frame: Frame) -> None:
        """As a link hands it on."""
        active = next(iter(self.engine.requests.active.values()))
        prefix = active.generation.tree.prefix.tokens
        known = prefix[: max(len(PROMPT), len(prefix) - frame.late)]
        rows: list[tuple[int, int, int, int]] = []
        paths = {0: known}
        for back, right, other, cost, entropy in frame.nodes:
            parent = self.first + len(rows) - back if 0 < back <= len(rows) else 0
            token = int(next_logits(paths[parent]).argmax()) if right else other
            if (parent, token) not in {row[:2] for row in rows}:
                paths[self.first + len(rows)] = [*paths[parent], token]
                rows.append((parent, token, cost, entropy))
        parents, tokens, costs, entropies = (list(column) for column in zip(*rows, strict=True))
        digest = prefix_hash(known)
        tree = Tree(active.id, 1, len(known), digest, self.first, parents, tokens, costs, entropies)
        check_tree_shape(tree, VOCAB)
        self.first += len(tokens)
        self.engine.post(FrameArrived("w", tree))


@pytest.mark.claim("no-tree-makes-a-request-fault-or-a-round-endless")
@pytest.mark.parametrize("policy", sorted(POLICIES))
@given(
    given_frames=frames,
    temperature=st.sampled_from([0.0, 0.8]),
    verification=st.sampled_from(["shared-noise", "rejection"]),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_no_tree_makes_a_request_fault_or_a_round_endless(
    policy: str, given_frames: list[Frame], temperature: float, verification: str
) -> None:
    turned = Turned(policy, Sampling(temperature=temperature, seed=1), verification)
    engine, turns, round_began, rounds, waiting = turned.engine, 0, 0.0, 0, list(given_frames)
    while turned.turn():
        turns += 1
        if engine.stats.rounds != rounds:
            rounds, round_began = engine.stats.rounds, turned.now
        assert turned.now - round_began < MAX_ROUND_S + 0.5, "a round that does not end"
        if waiting and turns % 2:
            turned.send(waiting.pop())
    assert engine.stats.faults == 0 and engine.stats.tokens == COUNT
    assert turns < COUNT * (MAX_LOCAL_PASSES + 20)
    assert {error.reason for error in turned.workers.punished} <= {"shape-depth"}


def bounded(actions: Callable[[int], Draft | CatchUp | Wait], step_s: float) -> tuple[int, float]:
    """How often a policy that never verifies is obeyed, and how long."""
    budget, tree = RoundBudget(4), CandidateTree(PROMPT)
    tree.add_local(tree.root, 7, 0.1, 0.1)
    for number in range(10_000):
        action = budget.bound(actions(number), tree, number * step_s)
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
    budget, tree = RoundBudget(4), CandidateTree(PROMPT)
    for _ in range(3):
        for _ in range(MAX_LOCAL_PASSES):
            assert isinstance(budget.bound(Draft(()), tree, 1.0), Draft)
        assert isinstance(budget.bound(Draft(()), tree, 1.0), Verify)
        budget.verified()
