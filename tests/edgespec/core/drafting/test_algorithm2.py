"""Algorithm 2 as a state machine."""

from __future__ import annotations

import math

import pytest

from edgespec.core.drafting.algorithm2 import Drafting, DraftRule, Proposal, millinats
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.digests import prefix_hash
from edgespec.core.protocol.messages import MAX_COST, MAX_NODES, ROOT, check_tree_shape

SURE = Proposal(tokens=[7, 8, 9], costs=[0.1, 2.0, 3.0], entropy=0.2)
UNSURE = Proposal(tokens=[7, 8, 9], costs=[0.7, 0.9, 2.0], entropy=1.2)


def drafting(**rule: float) -> Drafting:
    machine = Drafting(request=1, epoch=1, prompt_len=3, rule=DraftRule(**rule))  # type: ignore[arg-type]
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
    first, second = machine.delta(), machine.delta()
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
