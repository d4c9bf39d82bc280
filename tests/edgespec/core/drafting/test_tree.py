"""The speculation tree against a slow twin that keeps every path as a tuple of tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.drafting.tree import Node, SpeculationTree

tokens = st.integers(0, 3)


class PathSet:
    """Slow twin: the tree as the set of its root-to-node paths, each with its cost."""

    def __init__(self) -> None:
        self.cost: dict[tuple[int, ...], float] = {(): 0.0}

    def append(self, path: tuple[int, ...], token: int, cost: float) -> None:
        self.cost.setdefault((*path, token), self.cost[path] + cost)

    def advance(self, chosen: list[int]) -> None:
        start = tuple(chosen)
        base = self.cost.get(start, 0.0)
        kept = {path[len(start) :]: cost for path, cost in self.cost.items() if path[: len(start)] == start}
        self.cost = kept or {(): base}


def paths_of(tree: SpeculationTree) -> dict[tuple[int, ...], Node]:
    return {node.path(tree.root): node for node in [tree.root, *tree.nodes.values()]}


@given(
    st.lists(
        st.one_of(st.tuples(st.integers(0, 50), tokens, st.floats(0, 5)), st.lists(tokens, min_size=1, max_size=3))
    )
)
def test_exactly_the_paths_that_continue_the_committed_tokens_are_kept(steps) -> None:
    tree, twin = SpeculationTree(9), PathSet()
    for step in steps:
        if isinstance(step, tuple):
            nodes = paths_of(tree)
            path = sorted(nodes)[step[0] % len(nodes)]
            tree.append(nodes[path], step[1], step[2], 0.1)
            twin.append(path, step[1], step[2])
        else:
            tree.advance(step)
            twin.advance(step)
        assert set(paths_of(tree)) == set(twin.cost)
        assert tree.depth() == max(len(path) for path in twin.cost)
        by_cost = sorted((cost, path) for path, cost in twin.cost.items() if path)
        base = tree.root.cost - twin.cost[()]
        for cost, path in by_cost:
            assert paths_of(tree)[path].cost - base == pytest.approx(cost)


def test_most_probable_gives_the_cheapest_unexpanded_nodes_within_reach() -> None:
    tree = SpeculationTree(0)
    tree.root.expanded = True
    near, far = tree.append(tree.root, 1, 2.0, 0.0), tree.append(tree.root, 2, 0.5, 0.0)
    far.expanded = True
    deep = tree.append(far, 3, 0.7, 0.0)
    assert tree.most_probable(2, 10) == [deep, near]
    assert tree.most_probable(2, 2) == [near], "children of the deeper one would lie beyond position 2"


def test_a_path_is_only_given_below_its_own_root() -> None:
    tree = SpeculationTree(0)
    orphan = tree.append(tree.root, 1, 0.0, 0.0)
    tree.advance([2])
    with pytest.raises(ValueError, match="under this root"):
        orphan.path(tree.root)
