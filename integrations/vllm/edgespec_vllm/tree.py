"""The candidate tree of one request on vLLM's side of the board.

The link process sends chains. They meet in a tree, so that after a rejection a sibling continues at once, without a
round trip. vLLM verifies chains only: of the tree it gets the most probable path.

This runs within vLLM's step, on what a worker sent. So each call visits a number of nodes that the caller can bound:
the tokens of the chain, and once after a commit those of the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import NamedTuple

MAX_NODES = 512
"""Candidates of one request; a worker sends about thirty for each committed token, of which most are pruned."""


class Candidates(NamedTuple):
    """A chain that continues the committed tokens."""

    tokens: list[int]
    chances: list[float]
    """Probability of each token after the one before, as its worker says."""


NONE = Candidates([], [])


class Node:
    """A candidate token: its probability after its parent, and what may follow it."""

    __slots__ = ("best", "chance", "children")

    def __init__(self, chance: float = 1.0) -> None:
        self.chance = chance
        self.children: dict[int, Node] = {}
        self.best: tuple[int, Node] | None = None
        """The likeliest child and its token; of equal ones the first."""

    def add(self, token: int, cost: int) -> Node:
        """A child that is not there yet; `cost`: millinats."""
        child = Node(exp(cost * -1e-3))
        self.children[token] = child
        if self.best is None or child.chance > self.best[1].chance:
            self.best = (token, child)
        return child

    def size(self) -> int:
        """Nodes below it."""
        count = 0
        stack = [self]
        while stack:
            below = stack.pop().children.values()
            count += len(below)
            stack.extend(below)

        return count


class Tree:
    """Candidates after the first `start` tokens of a sequence, which are committed."""

    __slots__ = ("_counted", "_nodes", "_root", "start", "visited")

    def __init__(self, start: int) -> None:
        self.start = start
        self._root = Node()
        self._nodes = 0
        """At least as many as there are: those that commits have pruned are counted off only when it matters."""
        self._counted = True
        """Nothing was pruned since the nodes were counted."""
        self.visited = 0
        """Nodes that all calls have visited: their work without a clock."""

    def add(self, start: int, tokens: Sequence[int], costs: Sequence[int], committed: Sequence[int]) -> int:
        """Takes in a chain that begins at position `start`; returns how many of its tokens are new candidates.

        A chain that begins before the root must repeat the committed tokens. `costs`: millinats of each token.
        """
        behind = self.start - start
        if not 0 <= behind < len(tokens):  # before any comparison: `start` may be thousands of tokens back
            return 0

        self.visited += len(tokens)
        if list(tokens[:behind]) != list(committed[start : self.start]):
            return 0

        node = self._root
        fresh = 0
        for token, cost in zip(tokens[behind:], costs[behind:]):
            child = node.children.get(token)
            if child is None:
                if self._full():
                    break
                child = node.add(token, cost)
                self._nodes += 1
                fresh += 1
            node = child

        return fresh

    def advance(self, tokens: Sequence[int]) -> None:
        """Commits tokens: what does not continue them is dropped."""
        node: Node | None = self._root
        for token in tokens:
            node = node.children.get(token) if node is not None else None
        self.start += len(tokens)
        self._root = node or Node()
        if node is None:
            self._nodes = 0
        self._counted = node is None

    def best(self, limit: int) -> Candidates:
        """The path that takes the most probable child each time, at most `limit` tokens."""
        tokens: list[int] = []
        chances: list[float] = []
        best = self._root.best
        while best is not None and len(tokens) < limit:
            token, node = best
            tokens.append(token)
            chances.append(node.chance)
            best = node.best
        self.visited += len(tokens)
        return Candidates(tokens, chances)

    def _full(self) -> bool:
        """Whether there is no room for a node. The nodes are counted at most once after each commit."""
        if self._nodes >= MAX_NODES and not self._counted:
            self._nodes = self._root.size()
            self._counted = True
            self.visited += self._nodes
        return self._nodes >= MAX_NODES
