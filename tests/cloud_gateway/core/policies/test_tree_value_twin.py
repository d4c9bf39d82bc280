"""The look at a tree, and what is learnt of it, against slow twins that follow every path by itself."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_gateway.core.policies.tuning import TUNING
from cloud_gateway.core.policies.worth import Surveyor
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.tree import Node


class SlowSurveyor:
    """Multiplies along each path, and counts from the tree as it was before each commit."""

    def __init__(self) -> None:
        rest = (TUNING.named - TUNING.match) / 2
        self.shares = [share * TUNING.prior for share in (TUNING.match, rest, rest / 2, rest / 2)]
        self.full = self.judged = TUNING.prior
        self.best, self.right, self.expected = TUNING.match * TUNING.prior, TUNING.trust, TUNING.trust

    def own(self, node: Node) -> float:
        """The node's probability given its parent."""
        assert node.parent is not None
        wrong = 1 - math.exp(node.parent.cost - node.cost) if node.drafted else 1.0
        for chance in (node.evidence or {}).values():
            wrong *= 1 - chance
        return 1 - wrong

    def survival(self, node: Node, root: Node) -> float:
        if node is root:
            return 1.0
        assert node.parent is not None
        return self.survival(node.parent, root) * self.own(node) * min(self.right / self.expected, 1.0)

    def leaves(self, tree: CandidateTree, width: int) -> dict[Node, float]:
        found = {}
        for node in (tree.root, *tree.tree.nodes.values()):
            at, children = self.survival(node, tree.root), list(node.children.values())
            left = at - sum(self.survival(child, tree.root) for child in children)
            if not children or (sum(child.drafted for child in children) < width and left > TUNING.least_open * at):
                found[node] = left
        return found

    def learn(self, tree: CandidateTree, tokens: list[int]) -> None:
        for node in (tree.root, *tree.tree.nodes.values()):
            drafted = [child for child in node.children.values() if child.drafted]
            if len(drafted) >= 4:
                self.full += 1
                for rank, cost in enumerate(sorted(child.cost for child in drafted)[:4]):
                    self.shares[rank] += min(self.right / self.expected, 1.0) * math.exp(node.cost - cost)
        node = tree.root
        for token in tokens:
            drafted = sorted((child for child in node.children.values() if child.drafted), key=lambda child: child.cost)
            self.judged += bool(drafted)
            self.expected += sum(math.exp(node.cost - child.cost) for child in drafted)
            self.best += bool(drafted) and drafted[0].token == token
            self.right += any(child.token == token for child in drafted)
            if token not in node.children:
                return
            node = node.children[token]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_a_look_equals_that_of_the_slow_twin(seed: int) -> None:
    rng, tree = random.Random(seed), CandidateTree([1, 2])
    fast, slow, sources = Surveyor(), SlowSurveyor(), rng.random() < 0.5
    for _ in range(20):
        for _ in range(rng.randrange(12)):
            parent, token = rng.choice([tree.root, *tree.tree.nodes.values()]), rng.randrange(6)
            if sources and rng.random() < 0.3:
                tree.suggest(tree.root, rng.randrange(6), rng.choice((0.2, 0.7)), "lookup")
                tree.suggest(parent, token, rng.choice((0.1, 0.5, 0.9)), "lookup")
            else:
                tree.add_local(parent, token, rng.choice((0.01, 0.3, 1.1, 3.0, 8.0)), 1.0, rng.choice("ab"))
        outlook = fast.look(tree, 1000, 4)
        assert {*outlook.nodes} == {*tree.tree.nodes.values()}
        assert all(node.parent in (tree.root, *outlook.nodes[:i]) for i, node in enumerate(outlook.nodes))
        expected = [slow.survival(node, tree.root) for node in outlook.nodes]
        assert list(outlook.survival) == pytest.approx(expected)
        twin = {node: mass for node, mass in slow.leaves(tree, 4).items() if mass > 1e-9}
        assert {node: mass for mass, _, node in outlook.best if mass > 1e-9} == pytest.approx(twin)
        if rng.random() < 0.5:
            tokens = [rng.randrange(6) for _ in range(rng.randrange(1, 4))]
            slow.learn(tree, tokens)
            tree.advance(tokens)
            fast.learn(tree, 4)
            assert list(fast.shares) == pytest.approx([share / slow.full for share in slow.shares])
            assert fast.match == pytest.approx(slow.best / slow.judged)
