"""The speculation tree against a slow twin that keeps its paths, and the rule by which workers share its branches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule
from edgespec.core.drafting.ranking import best_children
from edgespec.core.drafting.tree import BranchShare, Node, SpeculationTree, owner
from tools.doubles.model import HashModel

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
def test_exactly_the_paths_that_continue_the_committed_tokens_are_kept(steps: list[Any]) -> None:
    tree = SpeculationTree(9)
    twin = PathSet()
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
    near = tree.append(tree.root, 1, 2.0, 0.0)
    far = tree.append(tree.root, 2, 0.5, 0.0)
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


MODEL = HashModel(right=0.8)
Paths = set[tuple[int, ...]]
PROMPT = [3, 1, 4, 1, 5]


def propose(tokens: list[int]) -> Proposal:
    return best_children(MODEL.logits(tokens), (), 4)


def drafted(
    part: BranchShare, steps: int, leaves: int = 4, prompt: list[int] = PROMPT
) -> tuple[BestFirst, set[tuple[int, ...]]]:
    """A worker after so many draft steps, and the paths at which its draft was evaluated."""
    drafting = BestFirst(1, 1, len(prompt), BestFirstRule(sequences=leaves))
    drafting.part = part
    drafting.commit(0, prompt)
    return drafting, advance(drafting, steps)


def advance(drafting: BestFirst, steps: int) -> Paths:
    evaluated: Paths = set()
    for _ in range(steps):
        chosen = drafting.candidates()
        paths = [leaf.path(drafting.tree.root) for leaf in chosen]
        evaluated.update(paths)
        drafting.record(chosen, [propose([*drafting.prefix.tokens, *path]) for path in paths])
    return evaluated


def best_path(root: Node) -> list[Node]:
    path = []
    node = root
    while node.children:
        node = next(iter(node.children.values()))
        path.append(node)
    return path


@given(shape=st.lists(st.integers(0, 30), min_size=1, max_size=40), count=st.integers(2, 8))
def test_every_branch_has_one_owner_and_the_trunk_is_everybodys(shape: list[int], count: int) -> None:
    tree = SpeculationTree(position=6)
    nodes = [tree.root]
    for token, above in enumerate(shape):
        parent = nodes[above % len(nodes)]
        nodes.append(tree.append(parent, token, 0.5, 1.0))
    trunk = best_path(tree.root)
    for node in nodes[1:]:
        takers = [index for index in range(count) if BranchShare(index, count).takes(node, tree.root)]
        assert len(takers) == (count if node in trunk else 1)
        if node not in trunk and node.parent is not tree.root and node.parent not in trunk:
            assert owner(node, tree.root, count) == owner(node.parent, tree.root, count)  # a branch stays whole


def test_siblings_beside_the_trunk_go_to_different_workers() -> None:
    tree = SpeculationTree(position=6)
    first, second, third = (tree.append(tree.root, token, 1.0, 1.0) for token in (5, 6, 7))
    assert [owner(node, tree.root, 2) for node in (first, second, third)] == [None, 0, 1]


@given(st.integers(0, 10_000))
def test_workers_with_different_trees_agree_on_what_both_have(seed: int) -> None:
    prompt = [*PROMPT, seed % 50, seed % 37]
    (one, _), (other, _) = (drafted(BranchShare(index, 2), 6, prompt=prompt) for index in (0, 1))
    for node in one.tree.nodes.values():
        path = node.path(one.tree.root)
        twin = other.tree.root
        for token in path:
            following = twin.children.get(token)
            if following is None:
                break
            twin = following
        else:
            assert owner(node, one.tree.root, 2) == owner(twin, other.tree.root, 2)


def test_two_draft_more_than_one_and_mostly_not_the_same() -> None:
    alone = both = twice = likeliest = found = 0
    for seed in range(12):
        prompt = [*PROMPT, seed]
        one, other = (drafted(BranchShare(index, 2), 8, prompt=prompt)[1] for index in (0, 1))
        _, wide = drafted(BranchShare(), 8, leaves=8, prompt=prompt)  # both budgets in one worker
        alone += len(drafted(BranchShare(), 8, prompt=prompt)[1])
        both += len(one | other)
        twice += len(one & other)
        likeliest += len(wide)
        found += len(wide & (one | other))
    assert both > 1.15 * alone
    assert twice < 0.7 * both
    assert found > 0.6 * likeliest


def test_the_trunk_is_drafted_by_each_so_that_one_can_go_on_alone() -> None:
    drafting, evaluated = drafted(BranchShare(1, 2), 8)
    trunk = [node for node in best_path(drafting.tree.root) if node.expanded]
    assert len(trunk) >= 4
    assert all(node.path(drafting.tree.root) in evaluated for node in trunk)


def test_the_other_branches_are_taken_up_when_the_others_leave() -> None:
    drafting, before = drafted(BranchShare(0, 2), 6)
    drafting.part = BranchShare()
    root = drafting.tree.root
    foreign = {
        n.path(root) for n in drafting.tree.nodes.values() if owner(n, root, 2) == 1 and n.path(root) not in before
    }
    after = advance(drafting, 3)
    assert foreign & after, "what the other one had is drafted at the next step"


def test_a_whole_share_changes_nothing() -> None:
    assert drafted(BranchShare(), 8)[1] == drafted(BranchShare(0, 1), 8)[1]
