"""The gateway's candidate tree of one request: what workers and local drafts propose after the committed tokens.

A worker names nodes by ids of its own, and its frames may be a round trip old. So each source keeps a small map from
its ids to where those nodes are now: in the tree, or among the committed tokens. Everything else is stale.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from operator import itemgetter

from msgspec import Struct

from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.tree import Node, SpeculationTree
from edgespec.core.protocol.digests import Prefix
from edgespec.core.protocol.messages import MAX_DEPTH, ROOT, Tree, shape_error

LOCAL = "local"
"""Name of the gateway's own draft as a source."""
MIN_NAMED = 64
"""Names of a worker's nodes that are kept before those of pruned nodes are dropped; then it is when four times as many
are there as were left, so that sorting them out costs the same for each name."""
COMMITTED_SPAN = 64
"""Positions behind the root for which a frame under way may still name a parent."""


class Merged(Struct, frozen=True):
    """What became of a frame: `fresh` nodes are new candidates, `known` were there, `stale` ones are off the path."""

    fresh: int = 0
    known: int = 0
    stale: int = 0
    prefix: bool = True
    """False where the frame's prefix hash is not that of any committed prefix."""
    reached: int = -1
    """Deepest position that the frame shows on the committed path or among the candidates."""
    diverged_at: int = -1
    """Deepest committed position whose children the frame names without the token that followed; -1: none."""
    base: int = -1
    """Position of the last token that the worker had been sent when it made the frame."""

    @property
    def useful(self) -> bool:
        """Whether the frame shows a worker that is on the committed path."""
        return self.fresh + self.known > 0


@dataclass(slots=True)
class _Source:
    """One worker's numbering within one epoch. A value is a living node, or the position of a committed token."""

    where: dict[int, Node | int] = field(default_factory=dict)
    next_id: int = 1
    limit: int = MIN_NAMED
    """Names at which those of pruned nodes are dropped."""

    def forget_before(self, oldest: int) -> None:
        """Drops the names of pruned nodes, and of tokens that were committed before this position."""
        kept: dict[int, Node | int] = {}
        for (
            wire,
            place,
        ) in self.where.items():  # without a call for each, which would take as long as the rest
            if isinstance(place, int):
                position = place
            else:
                position = place.position
            if position >= oldest:
                kept[wire] = place

        self.where = kept
        self.limit = max(4 * len(kept), MIN_NAMED)


_Row = tuple[int, int, int, int, int]
"""A node of a frame: its id and that of its parent, its token, and cost and entropy in thousandths of a nat."""


@dataclass(slots=True)
class _Delta:
    """What became of the nodes of one frame so far; counts as in `Merged`."""

    where: dict[int, Node | int]
    """Places by id, as of the source; those of the frame are added."""
    owner: str
    fresh: int = 0
    stale: int = 0
    reached: int = -1
    diverged_at: int = -1

    def merged(self, nodes: int, base: int) -> Merged:
        """The result for a frame with so many nodes. A divergence does not count if the frame reaches beyond it."""
        diverged_at = self.diverged_at
        if diverged_at < self.reached:
            diverged_at = -1
        known = nodes - self.fresh - self.stale
        return Merged(
            self.fresh,
            known,
            self.stale,
            reached=self.reached,
            diverged_at=diverged_at,
            base=base,
        )


class CandidateTree:
    """Candidates after the committed tokens, merged from several sources."""

    def __init__(self, prompt: Sequence[int], max_nodes: int = 1024) -> None:
        self.prefix = Prefix(prompt)
        self.tree = SpeculationTree(len(prompt) - 1, prompt[-1])
        self.max_nodes = max_nodes
        self._sources: dict[Hashable, _Source] = {}

    @property
    def root(self) -> Node:
        """The last committed token."""
        return self.tree.root

    def depth(self) -> int:
        """Candidate tokens on the longest path."""
        return self.tree.depth()

    def merge(self, source: Hashable, frame: Tree, owner: str) -> Merged:
        """Takes in one delta of a worker; `source` stands for worker and epoch, and forgets nothing until `forget`.

        Raises RemoteProtocolError where ids do not continue the former frames' or a node lies too deep.
        """
        state = self._sources.get(source) or self._sources.setdefault(source, _Source())
        if frame.first != state.next_id:
            raise shape_error("ids", f"node ids continue at {frame.first}, not at {state.next_id}")

        state.next_id += len(frame.tokens)
        if self.prefix.digests.get(frame.prefix_len) != frame.prefix_hash:
            return Merged(stale=len(frame.tokens), prefix=False)

        delta = _Delta(state.where, owner)
        base = frame.prefix_len - 1
        rows = zip(
            count(frame.first),
            frame.parents,
            frame.tokens,
            frame.costs,
            frame.entropies,
        )
        for parent_id, siblings in groupby(rows, key=itemgetter(1)):
            parent, committed = self._parent(state.where, parent_id, base)
            if parent is not None:
                self._merge_children(delta, parent, siblings)
            else:
                self._merge_committed(delta, committed, siblings)

        _mark_remote(state.where, frame)
        if delta.reached - base > MAX_DEPTH:
            raise shape_error("depth", f"a node lies {delta.reached - base} tokens below its prefix")

        return delta.merged(len(frame.tokens), base)

    def _merge_children(self, delta: _Delta, parent: Node, siblings: Iterable[_Row]) -> None:
        """Takes in a frame's nodes below a candidate or the root, until the tree is full."""
        tree = self.tree
        nodes = tree.nodes
        children = parent.children
        position = parent.position + 1
        parent.expanded = True

        for number, _, token, cost, entropy in siblings:
            child = children.get(token)
            if child is None:
                if len(nodes) >= self.max_nodes:
                    delta.stale += 1
                    continue

                # As `SpeculationTree.add`, without a call for each: half of a merge is this.
                new = tree.next_id
                tree.next_id = new + 1
                child = Node(
                    new,
                    token,
                    parent,
                    position,
                    parent.cost + cost / 1000,
                    entropy / 1000,
                    delta.owner,
                )
                children[token] = child
                nodes[new] = child
                delta.fresh += 1
            elif child.evidence is not None and not child.drafted:
                self._adopt(child, cost / 1000, entropy / 1000, delta.owner)
                delta.fresh += 1

            delta.where[number] = child
            if position > delta.reached:
                delta.reached = position

    def _merge_committed(self, delta: _Delta, parent: int | None, siblings: Iterable[_Row]) -> None:
        """Takes in a frame's nodes behind the committed token at this position; all are stale without one."""
        for number, _, token, _, _ in siblings:
            position = self._committed_at(parent, token)
            if position is not None:
                delta.where[number] = position
                delta.reached = max(delta.reached, position)
                continue

            delta.stale += 1
            if parent is not None:
                delta.diverged_at = max(delta.diverged_at, parent)

    def add_local(self, parent: Node, token: int, cost: float, entropy: float, owner: str = LOCAL) -> Node | None:
        """A candidate of the gateway's own: of its draft, or of another `owner`; None where the tree is full."""
        parent.expanded = True
        known = parent.children.get(token)
        if known is None:
            return self._append(parent, token, cost, entropy, owner)

        if not known.drafted:
            self._adopt(known, cost, entropy, owner)
        return known

    def propose(self, leaves: Sequence[Node], proposals: Sequence[Proposal]) -> None:
        """Takes in what the gateway's own draft proposes below these leaves, until the tree is full."""
        for leaf, proposal in zip(leaves, proposals, strict=True):
            for token, cost in zip(proposal.tokens, proposal.costs):
                if self.add_local(leaf, token, cost, proposal.entropy) is None:
                    return

    def suggest(self, parent: Node, token: int, chance: float, source: str) -> Node | None:
        """A candidate of a source without a draft model, its probability given `parent`; None where the tree is full.

        One that is there already is shared, with the evidence of each source that proposed it.
        """
        node = parent.children.get(token)
        cost = -math.log(chance)
        if node is None:
            node = self._append(parent, token, cost, 0.0, source)
            if node is None:
                return None
        elif not node.drafted:
            _reprice(node, parent.cost + cost)
        node.evidence = {**(node.evidence or {}), source: chance}
        parent.revision += 1
        return node

    def advance(self, tokens: Sequence[int]) -> int:
        """Commits tokens: re-roots, drops what is off the path, and returns how many of them were candidates.

        These keep their positions, since a frame under way may name them as parents."""
        matched = self.tree.advance(tokens)
        self.prefix.extend(tokens)

        oldest = self._oldest
        for state in self._sources.values():
            if len(state.where) > state.limit:
                state.forget_before(oldest)

        return matched

    def best(self, count: int, max_depth: int | None = None) -> list[Node]:
        """The `count` most probable candidates, parents always among them, at most `max_depth` levels down."""
        nodes: Iterable[Node] = self.tree.nodes.values()
        if max_depth is not None:
            deepest = self.root.position + max_depth
            nodes = (node for node in nodes if node.position <= deepest)
        return heapq.nsmallest(count, nodes, key=lambda node: (node.cost, node.position))

    def best_leaf(self) -> Node:
        """Where a local draft goes on: the end of the path that takes the most probable child each time."""
        node = self.root
        while node.children:
            node = min(node.children.values(), key=lambda child: child.cost)
        return node

    def forget(self, source: Hashable) -> None:
        """Drops a source's numbering; its candidates stay."""
        self._sources.pop(source, None)

    def discard(self, owner: str) -> None:
        """Drops the candidates below which only this owner's lie (a revoked worker's trees)."""
        for node in sorted(self.tree.nodes.values(), key=lambda node: -node.position):
            if node.owner != owner or node.parent is None:
                continue
            if node.evidence:
                node.owner, chance = next(iter(node.evidence.items()))
                node.parent.revision += 1
                _reprice(node, node.parent.cost - math.log(chance))
            elif not node.children:
                self.tree.drop(node)

    def _parent(self, where: Mapping[int, Node | int], parent_id: int, base: int) -> tuple[Node | None, int | None]:
        """The node that a frame means, or the position of the committed token; both None if it is stale. `base`: of the
        last token that the worker had been sent."""
        if parent_id == ROOT:
            place: Node | int | None = self._at(base)
        else:
            place = self._live(where.get(parent_id))
        if isinstance(place, Node):
            return place, None
        return None, place

    def _live(self, place: Node | int | None) -> Node | int | None:
        """The place as it is now: a committed node becomes its position (or the root), a pruned one None."""
        if place is None:
            return None

        position = _position(place)
        if position > self.tree.root.position:
            return place
        if position >= self._oldest:
            return self._at(position)
        return None

    def _at(self, position: int) -> Node | int:
        """The place of a committed token: the root, or its position."""
        root = self.tree.root
        if position == root.position:
            return root
        return position

    @property
    def _oldest(self) -> int:
        """The least position that a frame may still name."""
        return max(self.root.position - COMMITTED_SPAN, 0)

    def _adopt(self, node: Node, cost: float, entropy: float, owner: str) -> None:
        """A draft proposes what only sources without a draft model had: cost and entropy become the draft's."""
        assert node.parent is not None
        node.owner = owner
        node.entropy = entropy
        node.parent.revision += 1
        _reprice(node, node.parent.cost + cost)

    def _append(self, parent: Node, token: int, cost: float, entropy: float, owner: str) -> Node | None:
        """A candidate that is not there yet; None where the tree is full."""
        if len(self.tree.nodes) >= self.max_nodes:
            return None
        return self.tree.add(parent, token, cost, entropy, owner)

    def _committed_at(self, parent: int | None, token: int) -> int | None:
        """The position after `parent` where it holds this token; None where the frame is off the committed path."""
        if parent is None or self.prefix.tokens[parent + 1] != token:
            return None
        return parent + 1


def _mark_remote(where: Mapping[int, Node | int], frame: Tree) -> None:
    """Notes of each node of a frame that a worker has proposed it, also of those that were there already."""
    for number in range(frame.first, frame.first + len(frame.tokens)):
        place = where.get(number)
        if isinstance(place, Node):
            place.remote = True


def _position(place: Node | int) -> int:
    if isinstance(place, Node):
        return place.position
    return place


def _reprice(node: Node, cost: float) -> None:
    """Sets a node's cost, and moves those below it by as much."""
    change = cost - node.cost
    stack = [node]
    while stack:
        below = stack.pop()
        below.cost += change
        stack.extend(below.children.values())
