"""What a candidate tree is worth: how likely every node is the target's, and what one more draft step would add."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cloud_gateway.core.merge import CandidateTree
from edgespec.core.calibration import Calibrator
from edgespec.core.tree import Node

PRIOR = 20
"""Observations that a first guess counts for."""
LEAST = 1e-3
"""Nodes less likely than this are not looked at."""
LEAST_OPEN = 0.05
"""Share of a node's future that must be unnamed for it to be worth another look by the local draft."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The likely part of a tree. `nodes` come in falling order of `survival`, so every head is closed under parents."""

    nodes: Sequence[Node]
    survival: Sequence[float]
    leaves: Sequence[Node]
    """Where one local draft step adds most, best first."""
    open_mass: float
    """Probability that the target's path leaves the tree at one of `leaves`."""

    def worth(self, verify_s: Callable[[int], float], token_s: float, limit: int) -> Sequence[Node]:
        """The head of `nodes` whose expected tokens, at `token_s` each, exceed its cost by most (design section 7)."""
        best, best_count, gained = -verify_s(1), 0, 0.0
        for count, chance in enumerate(self.survival[:limit], 1):
            gained += chance
            net = gained * token_s - verify_s(count + 1)
            if net > best:
                best, best_count = net, count
        return self.nodes[:best_count]


class Surveyor:
    """Looks at one request's tree, and learns from what the target chose what candidates are worth."""

    def __init__(self, calibrator: Calibrator, match: float = 0.75, named: float = 0.95) -> None:
        """`match` and `named` are the first guesses of what the properties below tell, worth `PRIOR` observations."""
        self.calibrator = calibrator
        self._chances: dict[Node, float] = {}
        self._children: dict[Node, Sequence[Node]] = {}
        self._root: Node | None = None
        self._best_right, self._observed = match * PRIOR, float(PRIOR)
        self._named, self._full = named * PRIOR, float(PRIOR)

    @property
    def match(self) -> float:
        """How often the draft's best token was the target's."""
        return self._best_right / self._observed

    @property
    def named(self) -> float:
        """Probability that a node's children, all of them being there, contain the target's token."""
        return self._named / self._full

    def look(self, tree: CandidateTree, sequences: int, width: int) -> Outlook:
        """The tree as it is; a local step takes up to `sequences` leaves and names `width` children of each."""
        self._learn(tree)
        root = tree.root
        heap: list[tuple[float, int, Node]] = [(-1.0, root.id, root)]
        nodes: list[Node] = []
        survival: list[float] = []
        leaves: list[tuple[float, int, Node]] = []
        while heap:
            negative, _, node = heapq.heappop(heap)
            reach = -negative
            if node is not root:
                nodes.append(node)
                survival.append(reach)
            named = 0.0
            for child, chance in self._chances_of(node):
                named += chance
                if reach * chance >= LEAST:
                    heapq.heappush(heap, (-reach * chance, child.id, child))
            full = len(node.children) >= width
            if full:
                self._named, self._full = self._named + named, self._full + 1
            elif not node.children or 1 - named > LEAST_OPEN:
                leaves.append((reach * (1 - named), -node.id, node))
        chosen = heapq.nlargest(sequences, leaves)
        return Outlook(nodes, survival, [leaf for _, _, leaf in chosen], sum(mass for mass, _, _ in chosen))

    def _chances_of(self, node: Node) -> Sequence[tuple[Node, float]]:
        """The node's children with their probabilities given the node, made to sum to at most one."""
        children = tuple(node.children.values())
        if not children:
            return ()
        self._children[node] = children
        pairs = []
        for child in children:
            chance = self._chances.get(child)
            if chance is None:
                cost = child.cost - node.cost
                rank = sum(sibling.cost - node.cost < cost for sibling in children)
                chance = self._chances[child] = self.calibrator(cost, child.entropy, rank)
            pairs.append((child, chance))
        total = sum(chance for _, chance in pairs)
        return pairs if total <= 1 else [(child, chance / total) for child, chance in pairs]

    def _learn(self, tree: CandidateTree) -> None:
        """Tells the calibrator what became of the candidates that the last commits decided on."""
        node, root = self._root, tree.root
        if node is not None and node is not root:
            for token in tree.prefix.tokens[node.position + 1 : root.position + 1]:
                children = sorted(self._children.get(node, ()), key=lambda child: child.cost)
                if not children:
                    break
                tokens = [child.token for child in children]
                chosen = tokens.index(token) if token in tokens else None
                self.calibrator.observe([child.cost - node.cost for child in children], children[0].entropy, chosen)
                self._best_right += chosen == 0
                self._observed += 1
                if chosen is None:
                    break
                node = children[chosen]
            self._children.clear()
            self._chances = {node: chance for node, chance in self._chances.items() if node in tree.tree}
        self._root = root
