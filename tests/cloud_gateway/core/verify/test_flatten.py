"""A flattened tree against the tree itself, walked parent by parent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_gateway.core.verify.accept import FlatTree, flatten
from edgespec.core.drafting.tree import Node, SpeculationTree
from tests.support.trees import flat_trees, path_to

steps = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=30)


def grown(steps: list[tuple[int, int]], position: int = 7) -> SpeculationTree:
    """A tree in which each step hangs a token below an earlier node."""
    tree = SpeculationTree(position, token=42)
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
