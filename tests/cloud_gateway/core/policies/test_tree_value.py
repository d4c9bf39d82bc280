"""What a tree is worth."""

from __future__ import annotations

import math

import pytest

from cloud_gateway.core.policies.tree_value import Surveyor
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
    assert sum(outlook.masses) == pytest.approx(1.0)


def test_a_step_gains_what_it_adds_to_a_full_pass_and_no_more() -> None:
    tree, looker = CandidateTree([1, 2]), surveyor()
    for node in add(tree, tree.root, 0.5, 0.4):
        add(tree, node, 0.7, 0.3)
    outlook = looker.look(tree, 16, 2)
    assert outlook.gain(64) == pytest.approx(0.9 * looker.named, abs=0.01)
    assert 0 < outlook.gain(6) < outlook.gain(64), "six candidates are there already: what comes displaces some"


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
    outlook = surveyor().look(tree, 4, 2)
    assert len(outlook.worth(lambda rows: 0.010, 0.005, 32)) == 4, "a flat curve takes all"
    assert len(outlook.worth(lambda rows: 0.010 + 0.002 * rows, 0.005, 32)) == 2
    assert not outlook.worth(lambda rows: 0.010 + 0.01 * rows, 0.005, 32)
    assert len(outlook.worth(lambda rows: 0.050 if rows in (2, 3) else 0.010, 0.005, 32)) == 4, "not monotone"


def test_it_learns_the_match_rate_from_commits() -> None:
    tree, looker = CandidateTree([1, 2]), surveyor()
    for _ in range(100):
        add(tree, tree.root, 0.6, 0.3)
        looker.look(tree, 4, 2)
        tree.advance([11])
    looker.look(tree, 4, 2)
    assert looker.match < 0.2
