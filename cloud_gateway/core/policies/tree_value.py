"""What a candidate tree is worth: how likely every node is the target's, and what one more draft step would add."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.calibration import Calibrator
from edgespec.core.drafting.tree import Node

PRIOR = 4
"""Weight of a prior, in observations."""
LEAST = 3e-3
"""Nodes less likely than this are not looked at."""
MIN_OPEN = 0.05
"""Share of a node's future that must be unnamed for it to be worth another look by the local draft."""


Chances = tuple[Sequence[tuple[Node, float]], float]
"""A node's children, each with its probability given the node, and the sum of those."""
NOBODY: Chances = ((), 0.0)


@dataclass(frozen=True, slots=True)
class Outlook:
    """The likely part of a tree. `nodes` come in falling order of `survival`, so every head is closed under parents."""

    nodes: Sequence[Node]
    survival: Sequence[float]
    leaves: Sequence[Node]
    """Where one local draft step adds most, best first."""
    masses: Sequence[float]
    """Probability that the target's path leaves the tree there, for each of `leaves`."""
    shares: Sequence[float]
    """Mean probability of a node's children, best first: what the step is expected to find at each leaf."""

    def gain(self, limit: int) -> float:
        """Tokens that one more draft step is expected to add to a pass over at most `limit` candidates."""
        found = [mass * share for mass in self.masses for share in self.shares]
        return sum(heapq.nlargest(limit, [*self.survival[:limit], *found])) - sum(self.survival[:limit])

    def worth(self, verify_s: Callable[[int], float], token_s: float, limit: int) -> Sequence[Node]:
        """The head of `nodes` whose expected tokens, at `token_s` each, exceed its cost by most."""
        best, best_count, gained = -verify_s(1), 0, 0.0
        for count, chance in enumerate(self.survival[:limit], 1):
            gained += chance
            net = gained * token_s - verify_s(count + 1)
            if net > best:
                best, best_count = net, count
        return self.nodes[:best_count]


class Surveyor:
    """Looks at one request's tree, and learns from what the target chose what candidates are worth."""

    def __init__(self, calibrator: Calibrator, match: float = 0.85, named: float = 0.95) -> None:
        """`match` and `named` are priors of the properties below, worth `PRIOR` observations."""
        self.calibrator = calibrator
        self._chances: dict[Node, float] = {}
        self._pairs: dict[Node, tuple[tuple[Node, ...], Chances]] = {}
        """Children and chances of a node as they were looked at last."""
        self._children: dict[Node, Sequence[Node]] = {}
        self._root: Node | None = None
        self._best_right, self._observed = match * PRIOR, float(PRIOR)
        rest = (named - match) / 2
        self._shares, self._full = [share * PRIOR for share in (match, rest, rest / 2, rest / 2)], float(PRIOR)

    @property
    def match(self) -> float:
        """How often the draft's best token was the target's."""
        return self._best_right / self._observed

    @property
    def named(self) -> float:
        """Probability that a node's children, all of them being there, contain the target's token."""
        return sum(self.shares)

    @property
    def shares(self) -> Sequence[float]:
        """The same for each child, best first."""
        return [share / self._full for share in self._shares]

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
            pairs, named = self._chances_of(node)
            for child, chance in pairs:
                if reach * chance >= LEAST:
                    heapq.heappush(heap, (-reach * chance, child.id, child))
            if len(pairs) >= width:
                self._share(pairs)
            elif not node.children or 1 - named > MIN_OPEN:
                leaves.append((reach * (1 - named), -node.id, node))
        chosen = heapq.nlargest(sequences, leaves)
        masses = [mass for mass, _, _ in chosen]
        return Outlook(nodes, survival, [leaf for _, _, leaf in chosen], masses, self.shares)

    def _share(self, pairs: Sequence[tuple[Node, float]]) -> None:
        """Takes the children of one node into the mean."""
        self._full += 1
        for rank, chance in enumerate(sorted((chance for _, chance in pairs), reverse=True)[: len(self._shares)]):
            self._shares[rank] += chance

    def _chances_of(self, node: Node) -> Chances:
        """The node's children with their probabilities given the node, made to sum to at most one, and that sum."""
        children = tuple(node.children.values())
        if not children:
            return NOBODY
        self._children[node] = children
        known = self._pairs.get(node)
        if known is not None and known[0] == children:
            return known[1]
        pairs = self._pairs_of(node, children)
        found = pairs, sum([chance for _, chance in pairs])
        self._pairs[node] = children, found
        return found

    def _pairs_of(self, node: Node, children: Sequence[Node]) -> Sequence[tuple[Node, float]]:
        pairs, base = [], node.cost
        costs = [child.cost - base for child in children]
        for child, cost in zip(children, costs):
            chance = self._chances.get(child)
            if chance is None:
                rank = sum([other < cost for other in costs])
                chance = self._chances[child] = self.calibrator(cost, child.entropy, rank)
            pairs.append((child, chance))
        total = sum([chance for _, chance in pairs])
        return pairs if total <= 1 else [(child, chance / total) for child, chance in pairs]

    def _learn(self, tree: CandidateTree) -> None:
        """Updates the calibrator with the candidates that the last commits decided on."""
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
            alive = tree.tree.nodes
            self._chances = {n: chance for n, chance in self._chances.items() if alive.get(n.id) is n}
            self._pairs = {n: pairs for n, pairs in self._pairs.items() if n is root or alive.get(n.id) is n}
        self._root = root
