"""Algorithm 2 as a state machine: what is drafted and sent, when nodes wait for others, and any order of events."""

from __future__ import annotations

import math
import random

import pytest

from edgespec.core.drafting.algorithm2 import MAX_HOLD, MIN_LEVELS, Drafting, DraftRule, Proposal, Rhythm, millinats
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule
from edgespec.core.drafting.tree import BranchShare
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.digests import prefix_hash
from edgespec.core.protocol.messages import MAX_COST, MAX_DEPTH, MAX_NODES, ROOT, Tree, check_tree_shape, levels
from edgespec.core.protocol.ranges import MAX_ID

SURE = Proposal(tokens=[7, 8, 9], costs=[0.1, 2.0, 3.0], entropy=0.2)
UNSURE = Proposal(tokens=[7, 8, 9], costs=[0.7, 0.9, 2.0], entropy=1.2)


def drafting(**rule: float) -> Drafting:
    machine = Drafting(request=1, epoch=1, prompt_len=3, rule=DraftRule(**rule))
    machine.commit(0, [1, 2, 3])
    return machine


def test_nothing_is_drafted_before_the_whole_prompt_is_here() -> None:
    machine = Drafting(1, 1, prompt_len=3, rule=DraftRule())
    machine.commit(0, [1, 2])
    assert machine.candidates() == []
    machine.commit(2, [3])
    assert machine.candidates() == [machine.tree.root]


def test_it_branches_to_the_top_b_only_where_the_entropy_reaches_theta() -> None:
    machine = drafting(branching=2, theta=0.5)
    machine.record(machine.candidates(), [SURE])
    assert [node.token for node in machine.tree.nodes.values()] == [7]
    machine.record(machine.candidates(), [UNSURE])
    assert [node.token for node in machine.candidates()] == [7, 8], "most probable first"


def test_a_step_takes_at_most_s_leaves_the_most_probable_ones() -> None:
    machine = drafting(branching=3, theta=0.0, sequences=2)
    machine.record(machine.candidates(), [UNSURE])
    assert [leaf.token for leaf in machine.candidates()] == [7, 8]


def test_deltas_number_nodes_in_the_order_sent_across_frames() -> None:
    machine = drafting(branching=2, theta=0.5)
    machine.record(machine.candidates(), [UNSURE])
    first = machine.delta()
    assert first is not None
    assert (first.first, first.parents, first.tokens) == (1, [ROOT, ROOT], [7, 8])
    assert first.costs == [700, 900] and first.entropies == [1200, 1200]
    machine.record(machine.candidates()[:1], [SURE])
    second = machine.delta()
    assert second is not None and (second.first, second.parents, second.tokens) == (3, [1], [7])
    assert second.costs == [100], "a cost is of one token, not of its path"
    assert machine.delta() is None


def test_a_commit_along_the_tree_re_roots_it_with_its_unsent_nodes() -> None:
    machine = drafting(branching=2, theta=0.5)
    machine.record(machine.candidates(), [UNSURE])
    machine.delta()
    machine.record(machine.candidates()[:1], [SURE])
    assert machine.commit(3, [7], prefix_hash([1, 2, 3, 7])) == 1
    delta = machine.delta()
    assert delta is not None
    assert (delta.prefix_len, delta.parents, delta.tokens) == (4, [ROOT], [7])
    assert delta.prefix_hash == prefix_hash([1, 2, 3, 7])


def test_it_stops_at_the_protocols_depth_and_at_its_own_size() -> None:
    machine = drafting(max_depth=2)
    for _ in range(2):
        machine.record(machine.candidates(), [SURE])
    assert machine.candidates() == []
    small = drafting(max_nodes=1)
    small.record(small.candidates(), [SURE])
    assert small.candidates() == []


def test_a_large_delta_is_cut_into_frames_that_the_protocol_allows() -> None:
    machine = drafting(branching=100, theta=0.0, max_nodes=1000)
    many = Proposal(list(range(100)), [float(i) for i in range(100)], 3.0)
    machine.record(machine.candidates(), [many])
    first = machine.delta()
    second = machine.delta()
    assert first is not None and second is not None
    assert (len(first.tokens), second.first, len(second.tokens)) == (MAX_NODES, MAX_NODES + 1, 100 - MAX_NODES)


@pytest.mark.parametrize(("start", "digest"), [(2, None), (3, b"x" * 32)])
def test_a_commit_that_does_not_continue_our_prefix_is_the_gateways_fault(start: int, digest: bytes | None) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        drafting().commit(start, [9], digest)
    assert caught.value.reason == "prefix"


def test_what_is_not_a_number_counts_as_least_probable() -> None:
    assert millinats(0.5) == 500 and millinats(-1.0) == 0
    assert millinats(float("inf")) == millinats(float("nan")) == millinats(1e40) == MAX_COST
    assert millinats(float("nan"), unknown=0) == 0


@pytest.mark.parametrize("nats", [-1.0, 1e40, math.inf, math.nan])
def test_no_price_of_a_draft_makes_a_frame_that_a_gateway_refuses(nats: float) -> None:
    machine = drafting()
    machine.record(machine.candidates(), [Proposal([5, 6], [nats, nats], min(nats, 1.0))])
    frame = machine.delta()
    assert frame is not None
    check_tree_shape(frame, vocab_size=32)


PASS_S = 0.1
RTT_S = 0.02


def rhythm() -> Rhythm:
    made = Rhythm()
    made.committed(PASS_S, 1.0)
    return made


def test_nothing_waits_before_a_pass_was_stated() -> None:
    fresh = Rhythm()
    assert not fresh.holds(1.0, 1.0, RTT_S)
    fresh.committed(0.0, 1.0)
    assert not fresh.holds(1.0, 1.001, RTT_S)


def test_the_last_call_is_a_round_trip_before_the_end_of_the_pass() -> None:
    assert rhythm().last_call(RTT_S) == pytest.approx(1.0 + PASS_S - RTT_S)


@pytest.mark.parametrize(
    ("since", "end", "holds"),
    [(1.0, 1.02, True), (1.0, 1.0 + MAX_HOLD * PASS_S + 0.001, False), (1.07, 1.079, True), (1.07, 1.081, False)],
)
def test_nodes_wait_a_quarter_of_a_pass_and_not_past_the_last_call(since: float, end: float, holds: bool) -> None:
    assert rhythm().holds(since, end, RTT_S) is holds


def test_a_far_worker_never_waits() -> None:
    assert not rhythm().holds(1.0, 1.001, 0.15)


def test_the_mean_follows_passes_that_get_longer() -> None:
    one = rhythm()
    for _ in range(10):
        one.committed(0.2, 2.0)
    assert 0.19 < one.pass_s < 0.2


def grown(levels: int) -> Drafting:
    """A chain of so many levels, of which all but the last were sent."""
    drafting = Drafting(1, 1, 1, DraftRule(branching=1))
    drafting.commit(0, [7])
    drafting.rhythm.committed(PASS_S, 1.0)
    for level in range(levels):
        drafting.delta()
        drafting.record(drafting.candidates(), [Proposal([level], [0.1], 0.2)])
    return drafting


@pytest.mark.parametrize(("levels", "due"), [(1, True), (MIN_LEVELS, True), (MIN_LEVELS + 1, False)])
def test_the_first_levels_are_due_at_once_and_later_ones_wait(levels: int, due: bool) -> None:
    assert grown(levels).due(1.0, 1.006, RTT_S) is due


def test_waiting_counts_from_the_first_question() -> None:
    drafting = grown(5)
    times = [1.0 + 0.006 * i for i in range(6)]
    assert [drafting.due(now, now + 0.006, RTT_S) for now in times] == [False] * 4 + [True] * 2
    assert drafting.delta() is not None and not drafting.due(1.04, 1.046, RTT_S)


def test_after_a_divergence_the_first_levels_are_due_again() -> None:
    drafting = grown(5)
    assert not drafting.due(1.0, 1.006, RTT_S)
    drafting.commit(1, [99])
    drafting.rhythm.committed(PASS_S, 1.01)
    assert not drafting.due(1.01, 1.016, RTT_S), "what waited was pruned"
    drafting.record(drafting.candidates(), [Proposal([1], [0.1], 0.2)])
    assert drafting.due(1.02, 1.026, RTT_S)


COSTS = (0.0, 0.3, 9.0, 1e40, float("inf"))
ENTROPIES = (0.0, 0.5, 2.8)


def proposal(rng: random.Random) -> Proposal:
    count = rng.randint(0, 4)
    return Proposal(
        rng.sample(range(17), count), sorted(rng.choice(COSTS) for _ in range(count)), rng.choice(ENTROPIES)
    )


def committed(rng: random.Random, drafting: Drafting) -> None:
    known = list(drafting.prefix.tokens)
    ahead = [node.token for node in drafting.tree.most_probable(1, MAX_ID) if node.token >= 0]
    tokens = [rng.choice((*ahead, 0, 16, MAX_ID)) for _ in range(rng.choice((1, 1, 2, 9)))]
    digest = rng.choice((None, prefix_hash([*known, *tokens])))
    assert 0 <= drafting.commit(len(known), tokens, digest, chosen=rng.random() < 0.7) <= len(tokens)


@pytest.mark.claim("each-machine-takes-events-in-any-order")
@pytest.mark.parametrize("seed", range(40))
def test_any_order_gives_frames_of_the_right_shape_once_each(seed: int) -> None:
    rng = random.Random(seed)
    sent = list[Tree]()
    rule = BestFirstRule(max_depth=rng.choice((1, MAX_DEPTH)), max_nodes=rng.choice((8, 512)))
    drafting = BestFirst(1, 1, 3, rule) if seed % 3 else Drafting(1, 1, 3, DraftRule(theta=rng.choice((0.0, 0.5, 100))))
    for _ in range(120):
        leaves = drafting.candidates()[:6]
        proposals = [proposal(rng) for _ in leaves]
        if rng.random() < 0.3:
            committed(rng, drafting)
        drafting.record(leaves, proposals)
        count = rng.randint(1, 8)
        drafting.part = BranchShare(rng.randrange(count), count)
        if drafting.due(rng.random(), rng.random(), 0.02) and (frame := drafting.delta()) is not None:
            check_tree_shape(frame, MAX_ID + 1)
            assert levels(frame) <= MAX_DEPTH
            assert all(one.first + len(one.tokens) <= frame.first for one in sent), "a number is sent twice"
            sent.append(frame)
    assert sent
