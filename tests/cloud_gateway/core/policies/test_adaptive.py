"""Policy `adaptive`, decision by decision, and what policies carry from answer to answer."""

from __future__ import annotations

import json
import math
from typing import Literal

import pytest
from msgspec.structs import replace

from cloud_gateway.core.policies.adaptive import Adaptive
from cloud_gateway.core.policies.policy import (
    MAX_KEPT,
    Action,
    CatchUp,
    Costs,
    Draft,
    LinkView,
    Memory,
    Outcome,
    Verify,
    Wait,
    kind_of,
    temperature_class,
)
from cloud_gateway.core.policies.registry import POLICIES, make
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.policies.tuning import TUNING
from cloud_gateway.core.verify.candidates import CandidateTree, Merged
from edgespec.core.drafting.tree import Node

TD = 0.00373
TT = 0.01034
COSTS = Costs(lambda rows: TT, TD, batch_backlog_s=0.01)
NO_LOCAL = Costs(lambda rows: TT)
LATENCY = PolicySettings(prefer="latency")
OFFLOAD = PolicySettings(prefer="offload")


def link(rtt_s: float, *, ready: bool = True) -> LinkView:
    return LinkView(rtt_s, rtt_s, TD, ready)


def chain(tree: CandidateTree, *chances: float) -> Node:
    node = tree.root
    for chance in chances:
        node = tree.add_local(node, 5, -math.log(chance), 0.3)
    return node


def decide(
    policy: Adaptive, tree: CandidateTree, rtt_s: float | None, now: float = 0.0, costs: Costs = COSTS
) -> Action:
    return policy.decide(tree, None if rtt_s is None else link(rtt_s), costs, now)


def why_not_local(policy: Adaptive) -> str | None:
    return policy.why_not_local(drafted=True)


def test_it_waits_for_what_is_about_to_come() -> None:
    policy = Adaptive(OFFLOAD)
    tree = CandidateTree([1, 2])
    decide(policy, tree, 0.02)
    policy.received(Merged(known=1, reached=2), 0.001)
    action = decide(policy, tree, 0.02, now=0.001 + TD - 0.0005)
    assert isinstance(action, Wait) and action.until > 0.001 + TD - 0.0005


def test_nothing_is_waited_for_at_the_end_of_the_answer() -> None:
    policy = Adaptive(OFFLOAD)
    tree = CandidateTree([1, 2])
    last = Costs(lambda rows: TT, remaining=1)
    decide(policy, tree, 0.02)
    policy.received(Merged(known=1, reached=1), 0.001)
    assert isinstance(decide(policy, tree, 0.02, 0.001 + TD - 0.0005, last), Verify)


def test_a_long_stall_is_bridged_by_local_passes_over_the_likeliest_leaves() -> None:
    policy = Adaptive(LATENCY)
    tree = CandidateTree([1, 2])
    first = decide(policy, tree, 0.1)
    assert isinstance(first, Draft) and list(first.leaves) == [tree.root] and first.width == 4
    for i, chance in enumerate((0.8, 0.1, 0.05, 0.02)):
        tree.add_local(tree.root, 5 + i, -math.log(chance), 0.5)
    second = decide(policy, tree, 0.1, now=TD)
    assert isinstance(second, Draft) and len(second.leaves) == 4
    assert policy.fallbacks == 1


def test_a_completion_slower_than_without_drafts_even_under_offload() -> None:
    policy = Adaptive(OFFLOAD)
    tree = CandidateTree([1, 2])
    for token in range(3):
        assert not isinstance(decide(policy, tree, 0.3, now=1.5 * TT * token), Draft) and policy.why is None
        tree.advance([3])
        policy.verified(Outcome(0, 1, True, 0.0, tree.root.position), 1.5 * TT * (token + 1))
    assert isinstance(decide(policy, tree, 0.3, now=1.5 * TT * 3), Draft)
    assert policy.why == "with the worker, 300 ms away, it was slower than without it"


def test_a_backlog_is_priced_over_the_tokens_that_remain() -> None:
    for rtt_s in (0.1, None):
        few, many = (
            Costs(lambda rows: TT, TD, local_backlog_s=0.05, batch_backlog_s=0.01, remaining=remaining)
            for remaining in (3, 100)
        )
        assert isinstance(decide(Adaptive(LATENCY), CandidateTree([1, 2]), rtt_s, costs=few), Verify)
        assert isinstance(decide(Adaptive(LATENCY), CandidateTree([1, 2]), rtt_s, costs=many), CatchUp)


@pytest.mark.parametrize(
    ("costs", "rtt_s", "settings", "why"),
    [
        (Costs(lambda rows: TT, 2 * TT), None, LATENCY, "a draft step takes 20.7 ms, and what it finds would save "),
        (Costs(lambda rows: TT, 2 * TT, sharers=3), None, LATENCY, "a draft step takes 20.7 ms"),
        (Costs(lambda rows: TT, TD, 0.05, 0.01, remaining=3), None, LATENCY, "it has to read for 50.0 ms first, and "),
        (Costs(lambda rows: TT, TD, 0.05, 0.01), None, LATENCY, "it was still reading the committed tokens"),
        (COSTS, 0.1, PolicySettings(), "`policy.prefer` leaves it no more passes while a worker drafts"),
    ],
)
def test_a_reason_is_given_where_the_local_draft_is_not_asked(
    costs: Costs, rtt_s: float | None, settings: PolicySettings, why: str
) -> None:
    policy = Adaptive(settings)
    assert not isinstance(decide(policy, CandidateTree([1, 2]), rtt_s, costs=costs), Draft)
    given = why_not_local(policy)
    assert given is not None and given.startswith(why)
    assert given.endswith("(other requests in the same passes: 3)") is (costs.sharers == 3)


def test_the_reason_follows_the_rounds() -> None:
    policy = Adaptive(LATENCY)
    tree = CandidateTree([1, 2])
    decide(policy, tree, 0.1, costs=Costs(lambda rows: TT, 2 * TT))
    assert why_not_local(policy) is not None
    assert isinstance(decide(policy, tree, 0.1), Draft) and why_not_local(policy) is None
    for token in range(4):
        tree.add_local(tree.root, 5 + token, -math.log(0.1), 3.0)
    assert isinstance(decide(policy, tree, 0.1, now=TD), Verify)
    assert why_not_local(policy) is None, "it drafted in this round"


def suggested(*chances: float) -> CandidateTree:
    """`lookup` and the heads propose a path, and others of one token beside it."""
    tree = CandidateTree([1, 2])
    node: Node | None = tree.root
    for token, chance in enumerate(chances, 5):
        assert node is not None
        node = tree.suggest(node, token, chance, "lookup")
    for token in range(20, 24):
        tree.suggest(tree.root, token, (1 - chances[0]) / 5, "medusa")
    return tree


@pytest.mark.parametrize("helped", [True, False])
def test_quick_rounds_of_other_sources_do_not_end_local_runs(helped: bool) -> None:
    """If another source predicted the text, tokens came at a tenth of a pass; if none does, a run pays by its own
    pace."""
    policy = Adaptive(LATENCY)
    for round_ in range(30):
        tree = suggested(0.99) if helped else CandidateTree([1, 2])
        decide(policy, tree, None, round_ * TT, NO_LOCAL)
        policy.verified(Outcome(9, 10, at_leaf=False, entropy=0.0, position=1), (round_ + 1) * TT)
    bare = decide(policy, CandidateTree([1, 2]), None, now=30 * TT)
    assert isinstance(bare, Draft if helped else Verify)


def test_a_worker_whose_candidates_are_about_to_come_is_a_reason() -> None:
    policy = Adaptive(LATENCY)
    tree = CandidateTree([1, 2])
    quick = replace(COSTS, local_step_s=TT / 10)
    near = LinkView(0.001, 0.001, TT / 100, ready=True)
    policy.decide(tree, near, quick, 0.0)
    policy.received(Merged(known=1, reached=2), 0.001)
    assert isinstance(policy.decide(tree, near, quick, 0.001), Wait)
    assert str(why_not_local(policy)).startswith("the worker's next candidates save ")


def test_a_pass_waits_for_a_frame_that_is_nearly_there_and_for_no_other() -> None:
    policy = Adaptive(OFFLOAD)
    tree = CandidateTree([1, 2])
    slow = LinkView(0.02, 0.02, TT, ready=True)
    decide(policy, tree, 0.02)
    chain(tree, 0.9)
    policy.received(Merged(fresh=1, reached=2), 0.001)
    assert isinstance(policy.decide(tree, slow, NO_LOCAL, 0.001 + TT - 0.0008), Wait)
    assert isinstance(policy.decide(tree, slow, NO_LOCAL, 0.001 + TT - 0.0090), Verify)


def test_without_a_worker_offload_drafts_here_unless_there_is_no_draft() -> None:
    policy = Adaptive(OFFLOAD)
    assert isinstance(decide(policy, CandidateTree([1, 2]), None), Draft) and policy.why == "no worker drafts for it"
    assert isinstance(decide(Adaptive(OFFLOAD), CandidateTree([1, 2]), None, costs=NO_LOCAL), Verify)
    assert not isinstance(decide(Adaptive(OFFLOAD), CandidateTree([1, 2]), 0.1), Draft), "with one it makes none"


def test_a_prompt_is_read_ahead_where_that_pays_over_the_tokens_to_come() -> None:
    def ahead(backlog_s: float, tokens: int, *, worker: bool = False, sharers: int = 0) -> bool:
        costs = Costs(lambda rows: TT, TT / 30, local_backlog_s=backlog_s, remaining=tokens, sharers=sharers)
        return Adaptive().reads_prompt(costs, worker=worker)

    assert ahead(10 * TT, 60) and not ahead(10 * TT, 8), "over few tokens it costs more than it saves"
    assert ahead(2 * TT, 8) and not ahead(200 * TT, 200)
    assert not ahead(2 * TT, 60, worker=True), "waits for the worker are free time to read"
    assert ahead(2 * TT, 60, sharers=3) and not ahead(10 * TT, 60, sharers=3), "each waits while the others' are read"
    assert not Adaptive().reads_prompt(Costs(lambda rows: TT, 2 * TT, local_backlog_s=TT), worker=False)


def modes(*, paused: bool) -> list[str]:
    """The guard's, over twelve rounds of one token as fast as plain decoding, a second of reading before each."""
    adaptive = Adaptive()
    tree = CandidateTree([3])
    reading_s = 0.0
    found: list[str] = []
    for number in range(12):
        now = number * (TT + 1.0)
        costs = replace(NO_LOCAL, paused_s=reading_s if paused else 0.0)
        adaptive.decide(tree, link(0.01), costs, now)
        adaptive.verified(Outcome(0, 1, False, 0.5, number), now + TT)
        reading_s += 1.0
        found.append(adaptive.guard.mode)
    return found


def test_the_reading_of_other_prompts_is_not_the_workers_fault() -> None:
    assert "alone" not in modes(paused=True)
    assert "alone" in modes(paused=False)


def local_share(prefer: Literal["latency", "balanced", "offload"]) -> float:
    """Local passes over those of co-located k = 2, with a worker that is silent and rounds too fast for the guard."""
    policy = Adaptive(PolicySettings(prefer=prefer))
    tree = CandidateTree([1, 2])
    now = 0.0
    passes = 0
    reference = 0.0
    for _ in range(400):
        leaf = tree.root
        while isinstance(decide(policy, tree, 0.1, now), Draft):
            leaf = tree.add_local(leaf, 5, -math.log(0.8), 0.3)
            passes = passes + 1
        tokens = leaf.position - tree.root.position + 1
        now += 0.54 * TT * tokens
        tree.advance([5] * tokens)
        policy.verified(Outcome(tokens - 1, tokens, True, 0.3, tree.root.position), now)
        assert policy.guard.mode == "normal" and policy._reference is not None
        reference += tokens * policy._reference.passes
    return passes / reference


def test_balanced_makes_a_third_of_colocated_decodings_passes() -> None:
    assert local_share("offload") == 0
    assert 0.25 < local_share("balanced") < 0.33 and local_share("latency") > 0.9


def with_credit(passes: float) -> Adaptive:
    """A policy under `balanced` that may make so many local passes beside a worker."""
    policy = Adaptive(PolicySettings(prefer="balanced"))
    policy.completion.ended(0, passes / policy.tuning.draft_pass_share, 0.0)
    return policy


COMPANY = replace(COSTS, local_step_s=TD / 4, sharers=3, together=3)
"""Four requests share a pass of the local draft."""


def test_of_a_shared_pass_the_budget_pays_the_requests_part() -> None:
    for costs, left in ((COSTS, False), (COMPANY, True)):
        policy = with_credit(0.5)
        assert isinstance(decide(policy, CandidateTree([1, 2]), 0.1, costs=costs), Draft)
        assert policy.completion.may_draft is left


def test_a_pass_that_is_not_made_costs_nothing() -> None:
    policy = with_credit(0.5)
    tree = CandidateTree([1, 2])
    for _ in range(6):
        assert isinstance(decide(policy, tree, 0.1, costs=COMPANY), Draft)
        assert (policy.completion.passes, policy.fallbacks) == (1, 1)
        policy.withdrawn()
        assert (policy.completion.passes, policy.fallbacks) == (0, 0)
    policy.withdrawn()
    assert (policy.completion.passes, policy.fallbacks) == (0, 0), "no pass was to be made"


STEADY = Costs(lambda rows: 0.03, 0.004)
LINK = LinkView(0.02, 0.02, 0.004, ready=True)


def taught(tokens: int = 60) -> Adaptive:
    """A policy after an answer whose worker was always wrong."""
    policy = Adaptive()
    tree = CandidateTree([1, 2])
    for i in range(tokens):
        policy.decide(tree, LINK, STEADY, 0.03 * i)
        tree.advance([7])
        policy.verified(Outcome(0, 1, True, 0.1, tree.root.position), 0.03 * (i + 1))
        policy.received(Merged(stale=4, diverged_at=tree.root.position - 1), 0.03 * (i + 1))
    return policy


def test_a_resumed_policy_decides_as_one_whose_state_was_written_down() -> None:
    state = taught().state()
    first = make(PolicySettings(), state)
    second = make(PolicySettings(), json.loads(json.dumps(state)))
    tree = CandidateTree([1, 2])
    assert [one.decide(tree, LINK, STEADY, 0.0) for one in (first, second)] == [
        first.decide(tree, LINK, STEADY, 0.0)
    ] * 2
    assert first.state() == second.state()


def test_a_state_of_another_version_is_refused_by_name() -> None:
    state = taught().state()
    del state["local hits"]
    with pytest.raises(ValueError, match="lacks local hits"):
        Adaptive().resume(state)


def test_a_worker_that_was_wrong_is_not_waited_for_by_the_next_answer() -> None:
    fresh = Adaptive()
    resumed = Adaptive()
    resumed.resume(taught().state())
    assert resumed.worker.stay_rate < 0.6 < fresh.worker.stay_rate
    assert resumed.tree_model.worker.match < 0.2 < fresh.tree_model.worker.match
    assert resumed.tree_model.here.match == fresh.tree_model.here.match, "the gateway's own draft was not tried"


def test_what_is_carried_is_bounded() -> None:
    short = taught(100).state()
    long = taught(1000).state()
    assert {name: len(values) for name, values in short.items()} == {name: len(values) for name, values in long.items()}
    assert max(long["worker hits"]) <= TUNING.first_interval
    assert max(long["worker"][1:]) <= TUNING.first_interval


def test_policies_that_learn_nothing_have_no_state() -> None:
    assert {name for name in POLICIES if make(PolicySettings(name=name)).state()} == {"adaptive"}


def test_the_memory_keeps_the_latest_per_worker_and_class() -> None:
    memory = Memory()
    greedy = kind_of("adaptive", 0, ())
    memory.keep("a", greedy, {"x": [1.0]})
    memory.keep("b", greedy, {"x": [2.0]})
    memory.keep("a", greedy, {"x": [3.0]})
    memory.keep("", greedy, {"x": [4.0]})
    assert memory.recall(["a", "b"], greedy) == {"x": [3.0]}
    assert memory.recall(["b"], greedy) == {"x": [2.0]}
    assert memory.recall([], greedy) == {"x": [4.0]}
    assert memory.recall(["a"], kind_of("adaptive", 0.3, ())) is None
    for number in range(2 * MAX_KEPT):
        memory.keep(str(number), greedy, {})
    assert memory.recall(["0"], greedy) is None and memory.recall([str(2 * MAX_KEPT - 1)], greedy) == {}


def test_temperatures_fall_into_three_classes() -> None:
    assert [temperature_class(t) for t in (0.0, 0.3, 0.7, 1.5)] == [0, 1, 2, 2]


def test_answers_with_another_policy_or_other_sources_are_of_another_kind() -> None:
    kind = kind_of("adaptive", 0, ("a", "b"))
    assert kind == kind_of("adaptive", 0, ("b", "a"))
    assert kind not in (kind_of("adaptive", 0, ("a",)), kind_of("plain", 0, ("a", "b")))
