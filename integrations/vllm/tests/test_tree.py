"""Chains meet in a tree, which continues after a rejection and stays bounded."""

from __future__ import annotations

from typing import Any

from edgespec_vllm.tree import MAX_NODES, Tree
from hypothesis import given
from hypothesis import strategies as st

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=5)


def test_a_sibling_continues_after_a_rejection() -> None:
    tree = Tree(2)
    tree.add(2, [5, 6], [100, 100], [1, 1])
    tree.add(2, [7, 8, 9], [2000, 100, 100], [1, 1])
    assert tree.best(8).tokens == [5, 6]
    tree.advance([7])
    assert tree.best(8).tokens == [8, 9]
    assert tree.best(1).tokens == [8]


def test_a_more_probable_sibling_is_the_best_whenever_it_comes() -> None:
    tree = Tree(2)
    for token, cost, best in ((5, 500, 5), (6, 100, 6), (7, 300, 6), (8, 100, 6)):
        tree.add(2, [token], [cost], [1, 1])
        assert tree.best(8).tokens == [best]


def test_a_late_chain_continues_behind_the_tokens_it_repeats() -> None:
    tree = Tree(4)
    assert tree.add(2, [8, 9, 5], [0, 0, 0], [1, 1, 8, 9]) == 1
    assert tree.add(2, [8, 7, 6], [0, 0, 0], [1, 1, 8, 9]) == 0
    assert tree.add(5, [6], [0], [1, 1, 8, 9]) == 0
    assert tree.best(8).tokens == [5]


def test_the_tree_is_bounded_and_reuses_the_room_of_pruned_nodes() -> None:
    tree = Tree(0)
    for token in range(MAX_NODES + 10):
        tree.add(0, [token], [0], [])
    assert tree.add(0, [MAX_NODES + 20], [0], []) == 0
    tree.advance([3])
    assert tree.add(1, [1, 2], [0, 0], [3]) == 2


@given(st.lists(st.tuples(tokens, st.integers(0, 9)), max_size=8), tokens)
def test_the_tree_holds_what_its_slow_twin_holds(chains: list[tuple[list[int], int]], commit: list[int]) -> None:
    tree = Tree(0)
    paths: dict[Any, Any] = {}
    for chain, cost in chains:
        tree.add(0, chain, [cost] * len(chain), [])
        for n in range(1, len(chain) + 1):
            paths.setdefault(tuple(chain[:n]), cost)
    tree.advance(commit)
    path: list[int] = []
    while below := {p[-1]: c for p, c in paths.items() if p[:-1] == (*commit, *path)}:
        path.append(min(below, key=lambda token: below[token]))
    assert tree.best(99).tokens == path
