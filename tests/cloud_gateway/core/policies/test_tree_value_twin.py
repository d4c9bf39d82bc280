"""The look at a tree against a slow twin that computes everything again each time; equal to the last bit."""

from __future__ import annotations

import heapq
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_gateway.core.policies.tree_value import MIN_OPEN, MIN_REACH, Surveyor
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.calibration import Calibrator
from edgespec.core.drafting.tree import Node


class SlowSurveyor:
    """Walks the tree with a heap, asks the calibrator for one child at a time, and forgets no chance."""

    def __init__(self) -> None:
        self.calibrator, self.chances = Calibrator(), dict[Node, float]()
        self.looked: dict[Node, list[Node]] = {}
        self.root: Node | None = None
        rest = (0.95 - 0.85) / 2
        self.shares, self.full = [share * 4 for share in (0.85, rest, rest / 2, rest / 2)], 4.0

    def given(self, node: Node) -> list[tuple[Node, float]]:
        children = list(node.children.values())
        costs = [child.cost - node.cost for child in children]
        for child, cost in zip(children, costs):
            if child not in self.chances:
                rank = sum(other < cost for other in costs)
                self.chances[child] = self.calibrator(cost, child.entropy, rank)
        total = sum([self.chances[child] for child in children])
        return [(child, self.chances[child] / total if total > 1 else self.chances[child]) for child in children]

    def learn(self, tree: CandidateTree) -> None:
        node = self.root
        if node is not None and node is not tree.root:
            for token in tree.prefix.tokens[node.position + 1 : tree.root.position + 1]:
                children = sorted(self.looked.get(node, []), key=lambda child: child.cost)
                if not children:
                    break
                found = [i for i, child in enumerate(children) if child.token == token]
                costs = [child.cost - node.cost for child in children]
                self.calibrator.observe(costs, children[0].entropy, found[0] if found else None)
                if not found:
                    break
                node = children[found[0]]
            self.looked.clear()
        self.root = tree.root

    def look(self, tree: CandidateTree, width: int) -> tuple[list[Node], list[float], list[tuple[float, int]]]:
        self.learn(tree)
        heap, nodes, survival, leaves = [(-1.0, tree.root.id, tree.root)], list[Node](), list[float](), []
        while heap:
            negative, _, node = heapq.heappop(heap)
            if node is not tree.root:
                nodes.append(node)
                survival.append(-negative)
            pairs = self.given(node)
            if pairs:
                self.looked[node] = [child for child, _ in pairs]
            for child, chance in pairs:
                if -negative * chance >= MIN_REACH:
                    heapq.heappush(heap, (negative * chance, child.id, child))
            named = sum([chance for _, chance in pairs])
            if len(pairs) >= width:
                self.full += 1
                for rank, chance in enumerate(sorted((chance for _, chance in pairs), reverse=True)[:4]):
                    self.shares[rank] += chance
            elif not pairs or 1 - named > MIN_OPEN:
                leaves.append((-negative * (1 - named), -node.id))
        return nodes, survival, heapq.nlargest(8, leaves)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_a_look_equals_that_of_the_slow_twin_to_the_last_bit(seed: int) -> None:
    rng, tree = random.Random(seed), CandidateTree([1, 2])
    fast, slow = Surveyor(Calibrator()), SlowSurveyor()
    for _ in range(25):
        for _ in range(rng.randrange(12)):
            parent = rng.choice([tree.root, *tree.tree.nodes.values()])
            tree.add_local(
                parent, rng.randrange(6), rng.choice((0.01, 0.3, 1.1, 3.0, 8.0)), rng.random() * 3, rng.choice("ab")
            )
        if rng.random() < 0.1:
            tree.discard("a")
        outlook, (nodes, survival, leaves) = fast.look(tree, 8, 4), slow.look(tree, 4)
        assert list(outlook.nodes) == nodes and list(outlook.survival) == survival
        assert [(mass, number) for mass, number, _ in outlook.best] == leaves
        assert list(outlook.shares) == [share / slow.full for share in slow.shares]
        if rng.random() < 0.5:
            tree.advance([rng.randrange(6) for _ in range(rng.randrange(1, 4))])
