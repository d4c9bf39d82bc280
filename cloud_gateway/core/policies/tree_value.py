"""What a candidate tree is worth: how likely every node is the target's, and what one more draft step would add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from operator import attrgetter, itemgetter

from msgspec import Struct

from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.calibration import Calibrator
from edgespec.core.drafting.tree import Node

PRIOR = 4
"""Weight of a prior, in observations."""
CARRIED = 40.0
"""Most observations that are carried to the next answer, so that it soon counts for more than those before."""
MIN_REACH = 3e-3
"""Nodes less likely than this are not looked at."""
MIN_OPEN = 0.05
"""Share of a node's future that must be unnamed for it to be worth another look by the local draft."""


@dataclass
class Outlook:
    """The likely part of a tree. `nodes` come in falling order of `survival`, so every head is closed under parents."""

    root: int
    """Position of the last committed token."""
    nodes: Sequence[Node]
    survival: Sequence[float]
    shares: Sequence[float]
    """Mean probability of a node's children, best first: what a local draft step is expected to find at each leaf."""
    _open: list[tuple[float, int, Node]]
    """Where such a step could add something: (probability that the target's path leaves the tree there, -id, node)."""
    _sequences: int

    @cached_property
    def best(self) -> Sequence[tuple[float, int, Node]]:
        """Of `_open`, where one step adds most, best first."""
        return sorted(self._open, reverse=True)[: self._sequences]

    @cached_property
    def leaves(self) -> Sequence[Node]:
        """The nodes of `best`."""
        return [leaf for _, _, leaf in self.best]

    def undrafted(self, root: Node) -> tuple[Node, Sequence[float]]:
        """The first node of the likeliest path of which no draft has proposed a child, and survival: its own, and that
        of the likeliest path below it, level by level, which sources without a model propose. None of the latter where
        it has no children."""
        survival = dict(zip(self.nodes, self.survival))
        node, chance, found = root, 1.0, list[float]()
        first = None
        while True:
            if first is None and not any(child.drafted for child in node.children.values()):
                first = node
            if first is not None:
                found.append(chance)
            likely = [(survival[child], child) for child in node.children.values() if child in survival]
            if not likely:
                return first or node, found or [chance]
            chance, node = max(likely, key=itemgetter(0))

    def found(self, leaves: int) -> Sequence[float]:
        """Survival of what one more draft step over the best of `leaves` is expected to find."""
        return [mass * share for mass, _, _ in self.best[:leaves] for share in self.shares]


class _Seen(Struct):
    """A node's children as they were at the last look at it, and what was computed of them then."""

    children: Sequence[Node]
    drafted: Sequence[Node]
    """Those of them that a draft proposed."""
    chances: Sequence[float]
    """Of these, as the calibrator gave them at the first look at each."""
    given: Sequence[float]
    """Each child's probability given the node."""
    named: float
    """The sum of these."""
    ranked: Sequence[float]
    """The largest of these, best first."""
    commit: int
    """The number of commits before the look."""
    revision: int
    """The node's at the look."""


class Surveyor:
    """Looks at one request's tree, and learns from what the target chose what candidates are worth.

    Looking is most of a decision's time, so a node's children are looked at again only when there are more or others.
    """

    def __init__(self, calibrator: Calibrator, match: float = 0.85, named: float = 0.95) -> None:
        """`match` and `named` are priors of the properties below, worth `PRIOR` observations."""
        self.calibrator = calibrator
        self._seen: dict[Node, _Seen] = {}
        self._root: Node | None = None
        self._commits = 0
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

    def judged(self, *, hit: bool) -> None:
        """The draft's children after a committed prefix were seen to hold the token that followed, or not. Which child
        held it is not known: each rank counts by its share."""
        self._observed += 1
        self._full += 1
        if hit:
            ranks = [share / self.named for share in self.shares]
            self._best_right += ranks[0]
            self._shares = [share + rank for share, rank in zip(self._shares, ranks)]

    def state(self) -> list[float]:
        """What was learnt of the draft, as plain numbers: sums over observations, scaled to `CARRIED` at most."""
        scale = min(1.0, CARRIED / max(self._observed, self._full))
        return [value * scale for value in (self._best_right, self._observed, *self._shares, self._full)]

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state."""
        self._best_right, self._observed, *self._shares, self._full = state

    def look(self, tree: CandidateTree, sequences: int, width: int, deepest: float = inf) -> Outlook:
        """The tree as it is, down to position `deepest`, where the answer will end.

        A local step takes up to `sequences` leaves and names `width` children of each."""
        self._learn(tree)
        reached: list[tuple[float, int, Node]] = [(-1.0, tree.root.id, tree.root)]
        """Probabilities of the paths are negative here, so that sorting puts the most likely first."""
        leaves: list[tuple[float, int, Node]] = []
        full: list[tuple[float, int, Sequence[float]]] = []
        for negative, number, node in reached:  # grows meanwhile
            if node.position >= deepest:
                continue
            if not node.children:
                leaves.append((-negative, -number, node))
                continue
            seen = self._look_at(node)
            for child, chance in zip(seen.children, seen.given):
                below = negative * chance
                if below <= -MIN_REACH:
                    reached.append((below, child.id, child))
            if len(seen.drafted) >= width:
                full.append((negative, number, seen.ranked))
            elif 1 - seen.named > MIN_OPEN:
                leaves.append((-negative * (1 - seen.named), -number, node))
        for _, _, ranked in sorted(full):  # most likely first: the sum of floats depends on the order
            self._full += 1
            for rank, chance in enumerate(ranked):
                self._shares[rank] += chance
        del reached[0]
        reached.sort()
        nodes, survival = [node for _, _, node in reached], [-negative for negative, _, _ in reached]
        return Outlook(tree.root.position, nodes, survival, self.shares, leaves, sequences)

    def _look_at(self, node: Node) -> _Seen:
        """The node's children with their probabilities given the node, made to sum to at most one."""
        seen, children = self._seen.get(node), node.children
        if (
            seen is None
            or len(seen.children) != len(children)
            or seen.revision != node.revision
            or seen.children[-1] is not next(reversed(children.values()))  # new ones come last, so this and the number
        ):
            seen = self._seen[node] = self._see(node, tuple(children.values()), seen)
        seen.commit = self._commits
        return seen

    def _see(self, node: Node, children: Sequence[Node], before: _Seen | None) -> _Seen:
        base, shared = node.cost, node.revision > 0
        drafted = [child for child in children if child.drafted] if shared else children
        costs = [child.cost - base for child in drafted]
        chances = self.calibrator.chances(costs, [child.entropy for child in drafted])
        if before is not None:  # what was estimated of a child stays, though the calibrator has learnt since
            known = dict(zip(before.drafted, before.chances))
            chances = [known.get(child, chance) for child, chance in zip(drafted, chances)]
        given = _together(children, dict(zip(drafted, chances))) if shared else chances
        named = sum(given)
        if named > 1:
            given = [chance / named for chance in given]
            named = sum(given)
        ranked = [chance for child, chance in zip(children, given) if child.drafted] if shared else given
        ranked = sorted(ranked, reverse=True)[: len(self._shares)]
        return _Seen(children, drafted, chances, given, named, ranked, self._commits, node.revision)

    def _learn(self, tree: CandidateTree) -> None:
        """Updates the calibrator with the candidates that the last commits decided on."""
        node, root = self._root, tree.root
        if node is not None and node is not root:
            for token in tree.prefix.tokens[node.position + 1 : root.position + 1]:
                seen = self._seen.get(node)
                if seen is None or seen.commit != self._commits:
                    break
                if seen.drafted:
                    self._compare(node, seen.drafted, token)
                chosen = next((child for child in seen.children if child.token == token), None)
                if chosen is None:
                    break
                node = chosen
            self._commits += 1
            self._seen = {n: seen for n, seen in self._seen.items() if n.position >= root.position}
        self._root = root

    def _compare(self, node: Node, drafted: Sequence[Node], token: int) -> None:
        """What a draft proposed after a committed prefix, and the token that followed."""
        children = sorted(drafted, key=_cost)
        tokens = [child.token for child in children]
        chosen = tokens.index(token) if token in tokens else None
        self.calibrator.observe([child.cost - node.cost for child in children], children[0].entropy, chosen)
        self._best_right += chosen == 0
        self._observed += 1


def _together(children: Sequence[Node], drafts: Mapping[Node, float]) -> list[float]:
    """Each child's probability by all that proposed it, as if each were right or wrong independently of the others."""
    found = []
    for child in children:
        wrong = 1 - drafts.get(child, 0.0)
        for chance in (child.evidence or {}).values():
            wrong *= 1 - chance
        found.append(1 - wrong)
    return found


_cost = attrgetter("cost")
