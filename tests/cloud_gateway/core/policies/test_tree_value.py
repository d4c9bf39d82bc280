"""What a tree is worth."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from cloud_gateway.core.policies.actions import Costs
from cloud_gateway.core.policies.tree_value import Surveyor
from cloud_gateway.core.policies.worth import Prices
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.calibration import Calibrator
from edgespec.core.drafting.tree import Node


def surveyor() -> Surveyor:
    return Surveyor(Calibrator(rate=0.0))


def add(tree: CandidateTree, parent: Node, *chances: float) -> list[Node]:
    return [tree.add_local(parent, 10 + i, -math.log(p), 1.0) for i, p in enumerate(chances)]


def test_survival_is_the_product_along_the_path() -> None:
    tree = CandidateTree([1, 2])
    best, _ = add(tree, tree.root, 0.6, 0.3)
    add(tree, best, 0.5)
    outlook = surveyor().look(tree, 4, 2)
    assert list(outlook.survival) == pytest.approx([0.6, 0.3, 0.3])


def test_every_head_of_the_nodes_is_closed_under_parents() -> None:
    tree = CandidateTree([1, 2])
    for node in add(tree, tree.root, 0.5, 0.4):
        for child in add(tree, node, 0.7, 0.3):
            add(tree, child, 0.9)
    nodes = surveyor().look(tree, 4, 2).nodes
    assert all(node.parent is tree.root or node.parent in nodes[:i] for i, node in enumerate(nodes))


def test_a_local_step_expands_leaves_and_half_expanded_nodes() -> None:
    tree = CandidateTree([1, 2])
    best, second = add(tree, tree.root, 0.7, 0.1)
    outlook = surveyor().look(tree, 4, 4)
    assert outlook.leaves == [best, tree.root, second]
    assert sum(outlook.found(4)) == pytest.approx(sum(outlook.shares)), "all that the target may choose"


def test_nothing_is_looked_at_behind_the_end_of_the_answer() -> None:
    tree = CandidateTree([1, 2])
    (node,) = add(tree, tree.root, 0.9)
    add(tree, node, 0.8)
    outlook = surveyor().look(tree, 4, 2, tree.root.position + 1)
    assert outlook.nodes == [node] and node not in outlook.leaves


def test_what_frames_show_moves_the_match_rate_as_candidates_do() -> None:
    looker = surveyor()
    for _ in range(100):
        looker.judged(hit=False)
    assert looker.match < 0.05 and looker.named < 0.05
    for _ in range(1000):
        looker.judged(hit=True)
    assert looker.named > 0.0


def test_a_steps_children_are_expected_as_they_were_before() -> None:
    tree, looker = CandidateTree([1, 2]), surveyor()
    for _ in range(100):
        add(tree, tree.root, 0.6, 0.2, 0.1, 0.05)
        looker.look(tree, 4, 4)
        tree.advance([10])
    assert list(looker.shares) == pytest.approx([0.6, 0.2, 0.1, 0.05], abs=0.03)


def test_candidates_are_taken_while_they_are_worth_their_rows() -> None:
    tree = CandidateTree([1, 2])
    node = tree.root
    for chance in (0.9, 0.5, 0.2, 0.2):
        (node,) = add(tree, node, chance)
    survival = surveyor().look(tree, 4, 2).survival

    def count(verify_s: Callable[[int], float]) -> int:
        return Prices.of(Costs(verify_s), 0.005).best_count(survival)

    assert count(lambda rows: 0.010) == 4, "a flat curve takes all"
    assert count(lambda rows: 0.010 + 0.002 * rows) == 2
    assert count(lambda rows: 0.010 + 0.01 * rows) == 0
    assert count(lambda rows: 0.050 if rows in (2, 3) else 0.010) == 4, "not monotone"


def test_it_learns_the_match_rate_from_commits() -> None:
    tree, looker = CandidateTree([1, 2]), surveyor()
    for _ in range(100):
        add(tree, tree.root, 0.6, 0.3)
        looker.look(tree, 4, 2)
        tree.advance([11])
    looker.look(tree, 4, 2)
    assert looker.match < 0.2


def test_the_likeliest_path_is_followed_to_where_no_draft_has_been() -> None:
    tree = CandidateTree([1, 2])
    assert surveyor().look(tree, 4, 2).undrafted(tree.root) == (tree.root, [1.0])
    first = tree.suggest(tree.root, 5, 0.5, "lookup")
    assert first is not None
    tree.suggest(first, 6, 0.4, "lookup")
    tree.suggest(tree.root, 7, 0.3, "lookup")
    assert surveyor().look(tree, 4, 2).undrafted(tree.root) == (tree.root, pytest.approx([1.0, 0.5, 0.2]))
    tree.add_local(tree.root, 5, -math.log(0.9), 0.3)
    node, (mass, below) = surveyor().look(tree, 4, 2).undrafted(tree.root)
    assert node is first and mass > 0.5 and below == pytest.approx(0.4 * mass)
    leaf = tree.add_local(first, 6, -math.log(0.9), 0.3)
    assert surveyor().look(tree, 4, 2).undrafted(tree.root)[0] is leaf


def test_unlikely_candidates_of_a_draft_leave_nothing_to_follow() -> None:
    tree = CandidateTree([1, 2])
    tree.add_local(tree.root, 5, -math.log(1e-9), 0.3)
    assert surveyor().look(tree, 4, 2).undrafted(tree.root) == (tree.root, [1.0])
