"""The speculation tree: candidate tokens after the committed ones (WANSpec sections 4.2 and 4.4; SpecInfer).

The root stands for the last committed token. Ids are never reused within one tree. Path costs are sums of -log q
since the tree was made; re-rooting leaves them as they are, since only their order among living nodes matters.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec import Struct

PRUNED = -1
"""Position of a node that is in no tree any more and was not committed either."""


class Node(Struct, eq=False):
    """A draft token. `position`: its index in prompt + completion, or PRUNED; `entropy`: of the distribution it came
    from.

    A msgspec struct, since one is made for each draft token, in a quarter of a dataclass's time.
    """

    id: int
    token: int
    parent: Node | None
    position: int
    cost: float = 0.0
    """Nats of -log q along the path since the tree was made."""
    entropy: float = 0.0
    """Nats."""
    owner: str = ""
    """Who proposed it at the gateway: a draft if one did, else a source without a draft model."""
    expanded: bool = False
    """Whether the draft model has been evaluated here, so that its best children are known."""
    children: dict[int, Node] = {}
    wire: int = 0
    """Id under which the node was sent; 0 until then."""
    evidence: dict[str, float] | None = None
    """Its probability given its parent, by each source without a draft model that proposed it."""
    revision: int = 0
    """Grows when more is found out about a child that is there already."""
    remote: bool = False
    """Whether a worker has proposed it at the gateway, first or after its owner."""

    @property
    def drafted(self) -> bool:
        """Whether a draft proposed it, so that cost and entropy are a draft's."""
        return self.evidence is None or self.owner not in self.evidence

    def path(self, root: Node) -> tuple[int, ...]:
        """Tokens below `root` down to and including this node; empty for the root itself."""
        tokens: list[int] = []
        node: Node = self
        while node is not root:
            tokens.append(node.token)
            if node.parent is None:
                raise ValueError("the node does not lie under this root")
            node = node.parent

        return tuple(reversed(tokens))


class SpeculationTree:
    """A tree of candidate tokens that is appended to, pruned and re-rooted."""

    def __init__(self, position: int, token: int = -1) -> None:
        """`position`: index of the last committed token; `token`: its id, if known."""
        self.root = Node(0, token, None, position)
        self.nodes: dict[int, Node] = {}
        self.next_id = 1
        """The id that the next appended node gets."""

    def __len__(self) -> int:
        return len(self.nodes)

    def __contains__(self, node: Node) -> bool:
        return node is self.root or self.nodes.get(node.id) is node

    def append(self, parent: Node, token: int, cost: float, entropy: float) -> Node:
        """Adds one child; `cost` is -log q(token | path) in nats. A token that is there already is returned."""
        return parent.children.get(token) or self.add(parent, token, cost, entropy)

    def add(self, parent: Node, token: int, cost: float, entropy: float, owner: str = "") -> Node:
        """`append` for a token that is not there yet."""
        number = self.next_id
        self.next_id = number + 1
        node = Node(
            number,
            token,
            parent,
            parent.position + 1,
            parent.cost + cost,
            entropy,
            owner,
        )
        parent.children[token] = node
        self.nodes[number] = node
        return node

    def advance(self, tokens: Sequence[int]) -> int:
        """Re-roots along committed tokens and drops everything else.

        Returns how many of the tokens were in the tree. After a miss the root is a fresh, unexpanded node.
        """
        matched = 0
        for token in tokens:
            child = self.root.children.pop(token, None)
            self._drop_below(self.root)
            if child is None:
                child = Node(self.next_id, token, None, self.root.position + 1, self.root.cost)
                self.next_id += 1
            else:
                del self.nodes[child.id]
                matched += 1
            child.parent = None
            self.root = child

        return matched

    def leaves(self) -> Iterator[Node]:
        """Nodes at which the draft model has not been evaluated, the root included."""
        if not self.root.expanded:
            yield self.root
        yield from (node for node in self.nodes.values() if not node.expanded)

    def most_probable(self, count: int, max_position: int) -> list[Node]:
        """The `count` leaves of lowest path cost whose children would not lie beyond `max_position`, best first."""
        ready = [(leaf.cost, leaf.id, leaf) for leaf in self.leaves() if leaf.position < max_position]
        return [leaf for _, _, leaf in heapq.nsmallest(count, ready)]

    def depth(self) -> int:
        """Levels below the root."""
        deepest = max((node.position for node in self.nodes.values()), default=self.root.position)
        return deepest - self.root.position

    def drop(self, leaf: Node) -> None:
        """Removes one node without children."""
        assert leaf.parent is not None
        del leaf.parent.children[leaf.token]
        del self.nodes[leaf.id]
        leaf.position = PRUNED

    def drop_subtree(self, top: Node) -> None:
        """Removes a node and all that is below it."""
        self._drop_below(top)
        self.drop(top)

    def _drop_below(self, top: Node) -> None:
        """Removes all that is left below a node. Nodes keep their parents and lose their children: without a cycle they
        are freed as soon as nobody refers to them, which spares the cycle collector."""
        stack = [top]
        while stack:
            children = stack.pop().children
            for child in children.values():
                del self.nodes[child.id]
                child.position = PRUNED
                if child.children:
                    stack.append(child)
            children.clear()


FOREIGN = 2.0
"""Nats by which a leaf of another worker's branch counts as less probable (dev/decisions/000-first-thirty.md, 017). A
worker also drafts likely leaves of others, since only the owner of a branch is ahead when the target enters it."""


@dataclass(frozen=True, slots=True)
class BranchShare:
    """The branches that the `index`-th of a request's `count` workers drafts: a rule that all compute alike, so that
    they exchange no message.

    The *trunk* is the path that takes the draft's best child at each fork. All draft it, so that each stands where the
    text most probably goes and can go on alone. The branch that leaves the trunk for position p with the child of rank
    r belongs, with all that lies below it, to worker (p + r) mod n. Positions count from the prompt's first token and
    ranks are the draft's, so the rule depends on no clock, no frame and no calibration, and a branch keeps its owner as
    long as the trunk that it leaves stands.
    """

    index: int = 0
    count: int = 1

    def takes(self, node: Node, root: Node) -> bool:
        """Whether a node below `root` lies on the trunk or in a branch of this worker's."""
        return owner(node, root, self.count) in (None, self.index)

    def best(self, leaves: Iterable[Node], root: Node, count: int) -> list[Node]:
        """The `count` leaves to draft next, best first."""

        def cost(leaf: Node) -> float:
            if self.takes(leaf, root):
                return leaf.cost
            return leaf.cost + FOREIGN

        return sorted(leaves, key=cost)[:count]


WHOLE = BranchShare()


def owner(node: Node, root: Node, count: int) -> int | None:
    """Which of `count` workers drafts the branch in which a node below `root` lies; None on the trunk."""
    index = None
    while node is not root:
        assert node.parent is not None
        rank = list(node.parent.children).index(node.token)
        if rank:
            index = (node.position + rank) % count
        node = node.parent

    return index
