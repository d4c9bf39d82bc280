"""What policies carry from answer to answer."""

from __future__ import annotations

import json

from cloud_gateway.core.policies.adaptive import Adaptive
from cloud_gateway.core.policies.policy import MAX_KEPT, Costs, LinkView, Memory, Outcome, kind_of, temperature_class
from cloud_gateway.core.policies.registry import POLICIES, make
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.verify.candidates import CandidateTree, Merged

COSTS = Costs(lambda rows: 0.03, 0.004)
LINK = LinkView(0.02, 0.02, 0.004, ready=True)


def taught(tokens: int = 60) -> Adaptive:
    """A policy after an answer whose worker was always wrong."""
    policy, tree = Adaptive(), CandidateTree([1, 2])
    for i in range(tokens):
        policy.decide(tree, LINK, COSTS, 0.03 * i)
        tree.advance([7])
        policy.verified(Outcome(0, 1, True, 0.1, tree.root.position), 0.03 * (i + 1))
        policy.received(Merged(stale=4, prefix_len=2 + i, diverged_at=tree.root.position - 1), 0.03 * (i + 1))
    return policy


def test_a_resumed_policy_decides_as_one_whose_state_was_written_down() -> None:
    state = taught().state()
    first, second = make(PolicySettings(), state), make(PolicySettings(), json.loads(json.dumps(state)))
    tree = CandidateTree([1, 2])
    assert [one.decide(tree, LINK, COSTS, 0.0) for one in (first, second)] == [first.decide(tree, LINK, COSTS, 0.0)] * 2
    assert first.state() == second.state()


def test_a_worker_that_was_wrong_is_not_waited_for_by_the_next_answer() -> None:
    fresh, resumed = Adaptive(), Adaptive()
    resumed.resume(taught().state())
    assert resumed.worker.kept < 0.6 < fresh.worker.kept
    assert resumed.surveyor.match < 0.2 < fresh.surveyor.match


def test_what_is_carried_is_bounded() -> None:
    short, long = taught(100).state(), taught(1000).state()
    assert {name: len(values) for name, values in short.items()} == {name: len(values) for name, values in long.items()}
    assert max(long["ranks"]) <= 40 and max(long["worker"][1:]) <= 40


def test_policies_that_learn_nothing_have_no_state() -> None:
    assert {name for name in POLICIES if make(PolicySettings(name=name)).state()} == {"adaptive"}


def test_the_memory_keeps_the_latest_per_worker_and_class() -> None:
    memory, greedy = Memory(), kind_of(0, ())
    memory.keep("a", greedy, {"x": [1.0]})
    memory.keep("b", greedy, {"x": [2.0]})
    memory.keep("a", greedy, {"x": [3.0]})
    memory.keep("", greedy, {"x": [4.0]})
    assert memory.recall(["a", "b"], greedy) == {"x": [3.0]}
    assert memory.recall(["b"], greedy) == {"x": [2.0]}
    assert memory.recall([], greedy) == {"x": [4.0]}
    assert memory.recall(["a"], kind_of(0.3, ())) is None
    for number in range(2 * MAX_KEPT):
        memory.keep(str(number), greedy, {})
    assert memory.recall(["0"], greedy) is None and memory.recall([str(2 * MAX_KEPT - 1)], greedy) == {}


def test_temperatures_fall_into_three_classes() -> None:
    assert [temperature_class(t) for t in (0.0, 0.3, 0.7, 1.5)] == [0, 1, 2, 2]


def test_answers_with_other_sources_are_of_another_kind() -> None:
    assert kind_of(0, ("lookup",)) != kind_of(0, ()) and kind_of(0, ("b", "a")) == kind_of(0, ("a", "b"))
