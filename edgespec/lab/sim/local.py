"""The gateway's own draft in the simulator: what it has evaluated of one request, and what its passes take."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_gateway.core.policies.policy import Costs
from cloud_gateway.core.requests.local_costs import catch_up_batch, draft_costs
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.tree import Node
from edgespec.lab.sim.steps import WIDTHS, Steps


class LocalReading:
    """Keys and values that the local draft holds: committed tokens up to one, and single candidates below."""

    def __init__(self, steps: Steps, first_missing: int) -> None:
        """`first_missing`: position of the first prompt token that it has not evaluated."""
        self._steps, self._missing = steps, first_missing
        self._evaluated: set[Node] = set()

    def backlog(self, tree: CandidateTree) -> int:
        """Committed tokens to read before a step at the root, which evaluates the last one anyway."""
        return max(tree.root.position - self._missing, 0)

    def costs(self, tree: CandidateTree) -> Costs:
        """What the policy is given."""
        steps = self._steps
        if steps.local is None:
            return Costs(steps.verify)
        points = tuple((leaves, steps.local(leaves)) for leaves in WIDTHS)
        return draft_costs(steps.verify, steps.local(1), self.backlog(tree), steps.token_s, steps.leaves, points)

    def read(self, tree: CandidateTree, tokens: int) -> float:
        """One catch-up batch of at most so many tokens (0: a full one); returns its seconds."""
        batch = catch_up_batch(self._steps.verify, self._steps.token_s)
        tokens = min(self.backlog(tree), tokens or batch, batch)
        self._missing += tokens
        return tokens * self._steps.token_s

    def draft(self, tree: CandidateTree, leaves: Sequence[Node]) -> float:
        """One step over these leaves; returns its seconds, with those for all that was missing above them."""
        local = self._steps.local
        assert local is not None, "a policy drafts where there is no draft"
        missing, self._missing = self.backlog(tree), max(self._missing, tree.root.position)
        above = {node for leaf in leaves for node in _above(leaf, tree.root)} - self._evaluated
        root_is_missing = self._missing == tree.root.position
        missing += len(above) + (root_is_missing and tree.root not in leaves)
        self._evaluated |= above.union(leaves)
        self._missing = tree.root.position + 1
        return local(len(leaves)) + missing * self._steps.token_s

    def committed(self, path: Sequence[Node], tree: CandidateTree) -> None:
        """The candidates of `path` were committed, the first one first; `tree` is the one after it."""
        for node in path:
            if node.position == self._missing and node in self._evaluated:
                self._missing += 1
        self._evaluated = {node for node in self._evaluated if node in tree.tree}


def _above(leaf: Node, root: Node) -> Sequence[Node]:
    """The candidates between the root and a leaf."""
    found, node = [], leaf.parent
    while leaf is not root and node is not None and node is not root:
        found.append(node)
        node = node.parent
    return found
