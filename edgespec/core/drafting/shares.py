"""Which of a request's workers drafts which branch: a rule that all compute alike, so that they exchange no message.

The *trunk* is the path that takes the draft's best child at each fork. All draft it, so that each stands where the
text most probably goes and can go on alone. The branch that leaves the trunk for position p with the child of rank r
belongs, with all that lies below it, to worker (p + r) mod n. Positions count from the prompt's first token and ranks
are the draft's, so the rule depends on no clock, no frame and no calibration, and a branch keeps its owner as long as
the trunk that it leaves stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgespec.core.drafting.tree import Node

FOREIGN = 2.0
"""Nats by which a leaf of another worker's branch counts as less probable (dev/decisions/017-several-workers.md). So a
worker also drafts likely leaves of others: when the target enters a branch, only its owner is ahead there."""


@dataclass(frozen=True, slots=True)
class Part:
    """The `index`-th of `count` workers."""

    index: int = 0
    count: int = 1

    def takes(self, node: Node, root: Node) -> bool:
        """Whether a node below `root` lies on the trunk or in a branch of this worker's."""
        return owner(node, root, self.count) in (None, self.index)

    def best(self, leaves: Iterable[Node], root: Node, count: int) -> list[Node]:
        """The `count` leaves to draft next, best first."""
        return sorted(leaves, key=lambda leaf: leaf.cost + (0 if self.takes(leaf, root) else FOREIGN))[:count]


WHOLE = Part()


def owner(node: Node, root: Node, count: int) -> int | None:
    """Which of `count` workers drafts the branch in which a node below `root` lies; None on the trunk."""
    found = None
    while node is not root:
        assert node.parent is not None
        rank = list(node.parent.children).index(node.token)
        if rank:
            found = (node.position + rank) % count
        node = node.parent
    return found
