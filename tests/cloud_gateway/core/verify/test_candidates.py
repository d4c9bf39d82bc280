"""The candidate tree against a slow twin that knows every path a worker ever sent, over a link with delay."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_gateway.core.verify.candidates import MIN_NAMED, CandidateTree
from edgespec.core.drafting.algorithm2 import Drafting, DraftRule, Proposal
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.digests import prefix_hash
from edgespec.core.protocol.messages import Tree

PROMPT = [1, 2, 3]


def frame(first: int, parents: list[int], tokens: list[int], prefix: list[int] = PROMPT) -> Tree:
    n = len(tokens)
    return Tree(1, 1, len(prefix), prefix_hash(prefix), first, parents, tokens, [100] * n, [500] * n)


def live_paths(tree: CandidateTree) -> set[tuple[int, ...]]:
    return {(*tree.prefix.tokens, *node.path(tree.root)) for node in tree.tree.nodes.values()}


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 6), st.integers(0, 6))
def test_after_any_delay_the_tree_holds_just_the_continuing_paths(
    seed: int, branching: int, up: int, down: int
) -> None:
    """Drives the worker's own state machine over two FIFO queues of fixed length against a random target."""
    rng = random.Random(seed)
    worker = Drafting(1, 1, len(PROMPT), DraftRule(branching=branching, theta=0.3, sequences=3))
    worker.commit(0, PROMPT)
    gateway = CandidateTree(PROMPT)
    to_gateway: list[tuple[Tree, set[tuple[int, ...]]]] = []
    to_worker: list[tuple[int, list[int], bytes]] = []
    arrived: set[tuple[int, ...]] = set()
    for _ in range(40):
        leaves = worker.candidates()
        worker.record(
            leaves,
            [Proposal(rng.sample(range(4), 4), sorted(rng.random() for _ in range(4)), rng.random()) for _ in leaves],
        )
        before = set(worker._unsent)
        delta = worker.delta()
        if delta is not None:
            sent = before - set(worker._unsent)
            to_gateway.append((delta, {(*worker.prefix.tokens, *node.path(worker.tree.root)) for node in sent}))
        if len(to_gateway) > up:
            received, paths = to_gateway.pop(0)
            merged = gateway.merge("w", received, "w")
            arrived |= paths
            assert merged.prefix and merged.fresh + merged.known + merged.stale == len(received.tokens)
        if rng.random() < 0.6:
            node = gateway.root
            tokens = []
            while node.children and rng.random() < 0.7:
                node = rng.choice(list(node.children.values()))
                tokens.append(node.token)
            tokens.append(rng.randrange(4))
            start = len(gateway.prefix)
            gateway.advance(tokens)
            to_worker.append((start, tokens, gateway.prefix.digest))
        if len(to_worker) > down:
            worker.commit(*to_worker.pop(0))
        committed = tuple(gateway.prefix.tokens)
        expected = {path for path in arrived if path[: len(committed)] == committed and len(path) > len(committed)}
        assert live_paths(gateway) == expected
        assert all(node.owner == "w" for node in gateway.tree.nodes.values())


@pytest.mark.claim("a-frame-of-a-prefix-that-never-was-changes-nothing-and-says-so")
def test_a_frame_of_a_prefix_that_never_was_changes_nothing_and_says_so() -> None:
    tree = CandidateTree(PROMPT)
    merged = tree.merge("w", frame(1, [0], [9], prefix=[1, 2, 4]), "w")
    assert not merged.prefix and merged.stale == 1 and not merged.useful and tree.depth() == 0


@pytest.mark.claim("a-node-more-than-64-levels-below-its-prefix-is-refused")
def test_a_node_more_than_64_levels_below_its_prefix_is_refused() -> None:
    tree = CandidateTree(PROMPT)
    tree.merge("w", frame(1, list(range(64)), [5] * 64), "w")
    with pytest.raises(RemoteProtocolError) as caught:
        tree.merge("w", frame(65, [64], [5]), "w")
    assert caught.value.reason == "shape-depth"


@pytest.mark.claim("node-ids-must-continue-without-a-gap-or-a-repeat")
def test_node_ids_must_continue_without_a_gap_or_a_repeat() -> None:
    tree = CandidateTree(PROMPT)
    tree.merge("w", frame(1, [0], [5]), "w")
    for first in (1, 3):
        with pytest.raises(RemoteProtocolError) as caught:
            tree.merge("w", frame(first, [0], [6]), "w")
        assert caught.value.reason == "shape-ids"


def test_two_sources_may_use_the_same_ids_and_share_what_they_agree_on() -> None:
    tree = CandidateTree(PROMPT)
    assert tree.merge("a", frame(1, [0, 1], [5, 6]), "a").fresh == 2
    merged = tree.merge("b", frame(1, [0, 1], [5, 7]), "b")
    assert (merged.fresh, merged.known) == (1, 1)
    assert sorted(node.owner for node in tree.tree.nodes.values()) == ["a", "a", "b"]


def test_best_gives_parents_with_children_within_the_depth_limit() -> None:
    tree = CandidateTree(PROMPT)
    tree.merge("w", frame(1, [0, 0, 1], [5, 6, 7]), "w")
    chosen = tree.best(2)
    assert all(node.parent is tree.root or node.parent in chosen for node in chosen)
    assert {node.token for node in tree.best(9, max_depth=1)} == {5, 6}


def test_a_revoked_workers_candidates_go_and_the_others_stay() -> None:
    tree = CandidateTree(PROMPT)
    tree.merge("bad", frame(1, [0, 1, 0], [5, 6, 8]), "bad")
    tree.add_local(next(node for node in tree.tree.nodes.values() if node.token == 5), 9, 0.1, 0.1)
    tree.discard("bad")
    assert {node.token for node in tree.tree.nodes.values()} == {5, 9}, "5 carries a local candidate"


@pytest.mark.claim("a-worker-cannot-fill-memory")
def test_a_worker_cannot_fill_memory() -> None:
    tree = CandidateTree(PROMPT, max_nodes=10)
    merged = tree.merge("w", frame(1, [0] * 60, list(range(60))), "w")
    assert merged.fresh == 10 and merged.stale == 50


@pytest.mark.claim("a-worker-cannot-fill-memory")
def test_the_gateways_own_candidates_are_bounded_too() -> None:
    tree = CandidateTree(PROMPT, max_nodes=10)
    found = [tree.add_local(tree.root, token, 0.1, 0.1) for token in range(20)]
    assert len(tree.tree) == 10 and found[10:] == [None] * 10
    assert tree.add_local(tree.root, 3, 0.1, 0.1) is found[3], "one that is there is found where nothing more fits"


def test_ids_of_a_frame_with_a_foreign_prefix_are_used_up() -> None:
    tree = CandidateTree(PROMPT)
    tree.merge("w", frame(1, [0, 0], [8, 9], prefix=[1, 2, 4]), "w")
    assert tree.merge("w", frame(3, [0], [5]), "w").fresh == 1


def test_a_source_that_was_forgotten_numbers_its_nodes_from_1_again() -> None:
    tree = CandidateTree(PROMPT)
    tree.merge("w", frame(1, [0], [5]), "w")
    tree.forget("w")
    merged = tree.merge("w", frame(1, [0, 1], [5, 6]), "w")
    assert (merged.known, merged.fresh) == (1, 1)


@pytest.mark.parametrize(("tokens", "diverged_at"), [([4, 6], 3), ([4, 5], -1), ([8, 9], 2)])
def test_a_frame_of_an_older_prefix_shows_where_its_worker_diverged(tokens: list[int], diverged_at: int) -> None:
    """Two tokens, one below the other, from a worker that has not received that 4 and 5 were committed."""
    tree = CandidateTree(PROMPT)
    tree.advance([4, 5])
    assert tree.merge("w", frame(1, [0, 1], tokens), "w").diverged_at == diverged_at


def test_names_of_pruned_nodes_are_dropped() -> None:
    tree = CandidateTree(PROMPT)
    committed = list(PROMPT)
    for turn in range(60):
        tree.merge("w", frame(1 + 20 * turn, [0] * 20, list(range(20)), committed), "w")
        tree.advance([19])
        committed.append(19)
    assert len(tree._sources["w"].where) <= 5 * MIN_NAMED
