"""The candidate tree of one request on vLLM's side of the board.

The link process sends chains. They meet in a tree, so that after a rejection a sibling continues at once, without a
round trip. vLLM verifies chains only: of the tree it gets the most probable path.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_NODES = 512
"""Candidates of one request; a worker sends about thirty for each committed token, of which most are pruned."""


class Node:
    """A candidate token: the cost of choosing it after its parent, and what may follow it."""

    __slots__ = ("children", "cost")

    def __init__(self, cost: int = 0) -> None:
        self.cost = cost
        self.children: dict[int, Node] = {}

    def size(self) -> int:
        """Nodes below it."""
        count, stack = 0, [self]
        while stack:
            below = stack.pop().children.values()
            count += len(below)
            stack.extend(below)
        return count


class Tree:
    """Candidates after the first `start` tokens of a sequence, which are committed."""

    __slots__ = ("_nodes", "_root", "start")

    def __init__(self, start: int) -> None:
        self.start, self._root, self._nodes = start, Node(), 0

    def add(self, start: int, tokens: Sequence[int], costs: Sequence[int], committed: Sequence[int]) -> int:
        """Takes in a chain that begins at position `start`; returns how many of its tokens are new candidates.

        A chain that begins before the root must repeat the committed tokens. `costs`: millinats of each token.
        """
        behind = self.start - start
        if behind < 0 or list(tokens[:behind]) != list(committed[start : self.start]):
            return 0
        node, fresh = self._root, 0
        for token, cost in zip(tokens[behind:], costs[behind:]):
            child = node.children.get(token)
            if child is None:
                if self._nodes >= MAX_NODES:
                    self._nodes = self._root.size()  # what commits have pruned is counted off only when it matters
                    if self._nodes >= MAX_NODES:
                        break
                child = node.children[token] = Node(cost)
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
        if node is None:
            self._nodes = 0
        self._root = node or Node()

    def best(self, limit: int) -> list[int]:
        """The path that takes the most probable child each time, at most `limit` tokens."""
        path: list[int] = []
        node = self._root
        while node.children and len(path) < limit:
            token, node = min(node.children.items(), key=lambda item: item[1].cost)
            path.append(token)
        return path
