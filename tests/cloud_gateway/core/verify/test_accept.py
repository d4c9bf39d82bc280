"""The walk is lossless: whatever the candidates, the completion is that of asking the target token by token; and a
flattened tree is the tree itself, walked parent by parent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_gateway.core.verify.accept import FlatTree, flatten, walk
from edgespec.core.drafting.tree import Node, SpeculationTree
from tests.support.trees import flat_trees, path_to

VOCAB = 3  # so small that paths of several tokens match by chance
EOS = 0


def target(tokens: Sequence[int], seed: int) -> int:
    """A target without weights: its next token is a hash of everything before it."""
    return hashlib.sha256(bytes([seed, *tokens])).digest()[0] % VOCAB


def plain(prompt: list[int], count: int, seed: int) -> list[int]:
    """The slow twin: one token at a time."""
    answer: list[int] = []
    for _ in range(count):
        answer.append(target(prompt + answer, seed))
    return answer


trees = st.lists(flat_trees(VOCAB, max_rows=12), min_size=1, max_size=8)


@pytest.mark.claim("rounds-over-any-trees-give-plain-decodings-tokens")
@given(trees=trees, seed=st.integers(0, 255))
def test_rounds_over_any_trees_give_plain_decodings_tokens(trees: list[FlatTree], seed: int) -> None:
    prompt = [1]
    answer: list[int] = []
    for tree in trees:
        flat = FlatTree([[*prompt, *answer][-1], *tree.tokens[1:]], tree.parents, tree.depths)
        before = (prompt + answer)[:-1]

        def choose(row: int, flat: FlatTree = flat, before: list[int] = before) -> int:
            return target(before + [flat.tokens[i] for i in path_to(flat, row)], seed)

        answer += walk(flat, choose).tokens
    assert answer == plain(prompt, len(answer), seed)
    assert len(answer) >= len(trees)


@given(tree=flat_trees(VOCAB, max_rows=12), seed=st.integers(0, 255))
def test_the_rows_kept_are_the_path_of_the_tokens_emitted(tree: FlatTree, seed: int) -> None:
    asked: list[int] = []

    def choose(row: int) -> int:
        asked.append(row)
        return target([tree.tokens[i] for i in path_to(tree, row)], seed)

    found = walk(tree, choose)
    assert asked == found.rows == path_to(tree, found.rows[-1])
    assert [tree.tokens[row] for row in found.rows[1:]] == found.tokens[:-1]
    below = {tree.tokens[row] for row, parent in enumerate(tree.parents) if parent == found.rows[-1]}
    assert found.tokens[-1] not in below
    assert found.at_leaf == (not below)


@given(tree=flat_trees(VOCAB, max_rows=12), seed=st.integers(0, 255))
def test_a_stopping_token_is_the_last_one_and_its_row_is_not_kept(tree: FlatTree, seed: int) -> None:
    def choose(row: int) -> int:
        return target([tree.tokens[i] for i in path_to(tree, row)], seed)

    free = walk(tree, choose)
    stopped = walk(tree, choose, stop=lambda token: token == EOS)
    end = free.tokens.index(EOS) + 1 if EOS in free.tokens else len(free.tokens)
    assert stopped.tokens == free.tokens[:end]
    assert stopped.rows == free.rows[:end]


def test_a_walk_ends_at_the_leaf_at_a_miss_and_at_its_limit() -> None:
    chain = FlatTree([5, 6, 7], [-1, 0, 1], [0, 1, 2])
    ends = [walk(chain, lambda row: [6, 7, 8][row], limit=limit) for limit in (1, 2, 3, 9)]
    assert [(len(one.tokens), one.at_leaf) for one in ends][2:] == [(3, True), (3, True)]
    assert [len(one.tokens) for one in ends[:2]] == [1, 2]
    missed = walk(chain, lambda row: 9)
    assert (missed.tokens, missed.rows, missed.at_leaf) == ([9], [0], False)


@pytest.mark.claim("a-late-mask-keeps-its-own-completion-waiting-and-no-other")
@given(tree=flat_trees(VOCAB, max_rows=20), seed=st.integers(0, 255), late=st.sets(st.integers(1, 19)))
def test_a_walk_ends_before_a_row_whose_mask_is_late(tree: FlatTree, seed: int, late: set[int]) -> None:
    asked: list[int] = []

    def choose(row: int) -> int:
        asked.append(row)
        return target([tree.tokens[i] for i in path_to(tree, row)], seed)

    free = walk(tree, choose)
    asked.clear()
    taken = walk(tree, choose, ready=lambda row: row not in late)

    assert not late.intersection(asked), "asking for it would wait"
    passed = next((i for i, row in enumerate(free.rows) if row in late), len(free.rows))
    assert taken.rows == free.rows[:passed]
    assert taken.tokens == free.tokens[:passed]


steps = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=30)


def grown(steps: list[tuple[int, int]]) -> SpeculationTree:
    """A tree in which each step hangs a token below an earlier node."""
    tree = SpeculationTree(7, token=42)
    nodes = [tree.root]
    for parent, token in steps:
        nodes.append(tree.append(nodes[parent % len(nodes)], token, 1.0, 0.5))
    return tree


def closed_choice(tree: SpeculationTree, wanted: int) -> list[Node]:
    """Nodes by the bits of `wanted`, with their parents."""
    chosen: dict[int, Node] = {}
    for bit, node in enumerate(list(tree.nodes.values())):
        if wanted >> bit & 1:
            while node is not tree.root:
                chosen[node.id] = node
                assert node.parent is not None
                node = node.parent
    return list(chosen.values())


@given(tree=flat_trees(max_rows=20))
def test_the_mask_shows_each_row_its_ancestors_and_itself(tree: FlatTree) -> None:
    mask = tree.mask()
    assert mask.shape == (len(tree), len(tree))
    for row in range(len(tree)):
        assert set(mask[row].nonzero()[0].tolist()) == set(path_to(tree, row))


@given(steps=steps, wanted=st.integers(0, 2**30), order=st.randoms(use_true_random=False))
def test_any_choice_in_any_order_keeps_tokens_paths_and_depths(
    steps: list[tuple[int, int]], wanted: int, order: object
) -> None:
    tree = grown(steps)
    chosen = closed_choice(tree, wanted)
    order.shuffle(chosen)  # type: ignore[attr-defined]
    flat = flatten(tree.root, chosen)
    assert len(flat) == len(chosen) + 1
    assert (flat.tokens[0], flat.parents[0], flat.depths[0]) == (42, -1, 0)
    assert {node.id for node in flat.nodes} == {node.id for node in chosen}
    for row, node in enumerate(flat.nodes, 1):
        assert flat.parents[row] < row  # parents first, as the mask and the KV cache need it
        path = path_to(flat, row)
        assert tuple(flat.tokens[i] for i in path[1:]) == node.path(tree.root)
        assert flat.depths[row] == len(path) - 1 == node.position - tree.root.position


def test_a_node_without_its_parent_or_above_the_root_is_refused() -> None:
    tree = grown([(0, 1), (1, 2), (0, 3)])
    stale = tree.nodes[3]
    with pytest.raises(ValueError, match="without its parent"):
        flatten(tree.root, [tree.nodes[2]])
    tree.advance([1])
    with pytest.raises(ValueError, match="without its parent"):
        flatten(tree.root, [stale])
