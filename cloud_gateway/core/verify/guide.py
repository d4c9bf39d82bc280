"""A constraint and the candidates: forced tokens are added as candidates, forbidden candidates are not verified.

Neither can change a token: the target chooses under the constraint's mask whatever was verified. A JSON schema forces
much (punctuation, the names of its fields), and a draft that does not know the schema often proposes what it forbids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.core.verify.candidates import LOCAL, CandidateTree
from cloud_gateway.core.verify.interface import Constraint
from cloud_gateway.core.verify.shared_noise import path_to
from edgespec.core.drafting.tree import Node

GRAMMAR = "grammar"
"""Name of the constraint as a source of candidates."""
AT_GATEWAY = frozenset({LOCAL, GRAMMAR})
"""Owners of drafted candidates that are no workers."""
MAX_FORCED = 16
"""Candidates proposed after one node at once."""


class Guide:
    """One answer's constraint, and what it said of the tree under verification."""

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._missing: set[Node] = set()

    def propose(self, tree: CandidateTree) -> list[Node]:
        """Adds and returns what must follow the committed tokens; call when they have grown."""
        return self._force(tree, tree.root, MAX_FORCED)

    def select(self, tree: CandidateTree, nodes: Sequence[Node], room: int) -> list[Node]:
        """What to verify: `nodes` without those forbidden, and what is forced at the end of the likeliest path.

        `nodes` is closed under parents, and so is the result, which has at most `room` nodes.
        """
        chosen = self._allowed(tree.root, nodes)
        known = set(chosen)

        end = _likeliest_end(tree.root, known)
        forced = self._force(tree, end, min(MAX_FORCED, room - len(chosen)))
        self._constraint.ahead([node.path(tree.root) for node in forced])

        added = [node for node in forced if node not in known]
        return [*chosen, *added]

    def forbade(self, node: Node) -> bool:
        """Whether some candidate right after this node was left out by the last `select`."""
        return node in self._missing

    def _allowed(self, root: Node, nodes: Sequence[Node]) -> list[Node]:
        """Those that the constraint allows, parents first. Notes which nodes have a child that it forbids."""
        self._missing.clear()
        parents_first = sorted(nodes, key=lambda node: node.position)
        paths = {node: node.path(root) for node in parents_first}
        self._constraint.ahead(list(paths.values()))

        reachable = {root}
        chosen = []
        for node, path in paths.items():
            if node.parent not in reachable:
                continue
            if self._constraint.allowed(path) == len(path):
                reachable.add(node)
                chosen.append(node)
            else:
                self._missing.add(node.parent)

        return chosen

    def _force(self, tree: CandidateTree, node: Node, limit: int) -> list[Node]:
        """Adds what must follow this node, at most so many tokens; the chain of their nodes."""
        tokens = self._constraint.forced(node.path(tree.root))
        forced: list[Node] = []
        for token in tokens[: max(limit, 0)]:
            added = tree.add_local(node, token, 0.0, 0.0, owner=GRAMMAR)
            if added is None:
                break
            node = added
            forced.append(node)

        return forced


def _likeliest_end(root: Node, known: Collection[Node]) -> Node:
    """The end of the path below the root that takes the most probable of the known children each time."""
    end = root
    while True:
        below = [child for child in end.children.values() if child in known]  # in their order: costs may be equal
        if not below:
            return end
        end = min(below, key=lambda node: node.cost)


def ready_at(flat: FlatTree, constraint: Constraint | None) -> Callable[[int], bool]:
    """Whether the target can choose after a row, as `accept.walk` wants it."""
    return lambda row: constraint is None or constraint.ready(path_to(flat, row))
