"""What a candidate tree is worth: how likely each node is the target's, and what one more draft step would add.

A draft's probability counts, times how often its candidates were right for each time they said so: workers send
calibrated probabilities, the local draft's are calibrated here, and what is left of their error differs little from
token to token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import exp, inf, log
from operator import attrgetter, itemgetter

from cloud_gateway.core.policies.tuning import TUNING, Tuning
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.calibration import Calibrator
from edgespec.core.drafting.tree import Node

_cost = attrgetter("cost")


class Outlook:
    """The likely part of a tree: `nodes` come so that every head is closed under parents."""

    __slots__ = ("best", "leaves", "nodes", "root", "shares", "survival")

    def __init__(
        self, root: Node, nodes: Sequence[Node], survival: Sequence[float], shares: Sequence[float],
        best: Sequence[tuple[float, int, Node]],
    ) -> None:  # fmt: skip
        self.root, self.nodes, self.survival = root, nodes, survival
        self.shares = shares
        """Probability of a node's children, best first: what a draft step is expected to find at each leaf."""
        self.best = best
        """Where a step adds most, best first: (probability that the target's path leaves the tree there, -id, node)."""
        self.leaves = [leaf for _, _, leaf in best]

    def found(self, leaves: int) -> list[float]:
        """Survival of what one more draft step over the best of `leaves` is expected to find."""
        return [mass * share for mass, _, _ in self.best[:leaves] for share in self.shares]

    def undrafted(self) -> tuple[Node, Sequence[float]]:
        """The first node of the likeliest path of which no draft has proposed a child, and survival: its own, and that
        of the likeliest path below it, level by level, which sources without a model propose. None of the latter if
        it has no children."""
        survival = dict(zip(self.nodes, self.survival))
        node, chance, first, found = self.root, 1.0, None, list[float]()
        while True:
            if first is None and not any(child.drafted for child in node.children.values()):
                first = node
            if first is not None:
                found.append(chance)
            likely = [(survival[child], child) for child in node.children.values() if child in survival]
            if not likely:
                return first or node, found or [chance]
            chance, node = max(likely, key=itemgetter(0))


class Surveyor:
    """Looks at one request's tree, and learns from what the target chose what candidates are worth."""

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self.tuning, rest = tuning, (tuning.named - tuning.match) / 2
        self._best, self._judged = tuning.match * tuning.prior, tuning.prior
        """Prefixes whose next token was a draft's best one, and all that were judged."""
        self._shares = [share * tuning.prior for share in (tuning.match, rest, rest / 2, rest / 2)]
        self._full = tuning.prior
        """Sums of the probabilities of children by rank, and the nodes over which they are sums."""
        self._right = self._expected = tuning.trust
        """Candidates that were the target's, and how many were expected to be."""
        self._offered: dict[Node, Mapping[int, Node]] = {}
        """The last look's root and likely nodes, with the children that they had then."""
        self._root: Node | None = None
        self.calibrator = Calibrator()
        self._drafted: dict[Node, Proposal] = {}
        """What the local draft has proposed below nodes of the tree."""
        self._shared = False
        """Whether sources without a model have proposed anything."""

    @property
    def shares(self) -> list[float]:
        """Mean probability of a likely node's children, best first."""
        return [share / self._full for share in self._shares]

    @property
    def match(self) -> float:
        """How often the draft's best token was the target's."""
        return self._best / self._judged

    def judged(self, *, hit: bool) -> None:
        """The draft's children after a committed prefix were seen to hold the token that followed, or not. Which child
        held it is not known: each rank counts by its share."""
        self._judged += 1
        self._full += 1
        if hit:
            named = sum(self._shares)
            self._best += self._shares[0] / named
            self._shares = [share + share / named for share in self._shares]

    def priced(self, leaves: Sequence[Node], proposals: Sequence[Proposal]) -> list[Proposal]:
        """The local draft's proposals at calibrated costs, as workers send them."""
        self._drafted |= zip(leaves, proposals)
        return [replace(one, costs=self._calibrated(one)) for one in proposals]

    def _calibrated(self, one: Proposal) -> list[float]:
        return [self.calibrator.cost(cost, one.entropy, rank) for rank, cost in enumerate(one.costs)]

    def state(self) -> list[float]:
        """What was learnt of the draft, as plain numbers: sums over observations."""
        scale = min(1.0, self.tuning.carried / max(self._judged, self._full))
        trust = min(1.0, self.tuning.carried / self._expected)
        counts = (self._best, self._judged, *self._shares, self._full)
        return [*(count * scale for count in counts), self._right * trust, self._expected * trust]

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state."""
        self._best, self._judged, *self._shares, self._full, self._right, self._expected = state

    def look(
        self, tree: CandidateTree, sequences: int, width: int, deepest: float = inf, most: int = 1 << 30
    ) -> Outlook:
        """The tree as it is, down to position `deepest`, where the completion will end, and its `most` likely nodes.

        A local step takes up to `sequences` leaves and names `width` children of each."""
        root, nodes = tree.root, tree.tree.nodes.values()
        shared = self._shared = self._shared or root.revision > 0
        gains = _gains(nodes) if shared else {}
        likely = sorted(nodes, key=(lambda node: node.cost - gains[node]) if shared else _cost)[: most + sequences]
        if likely and deepest - root.position < len(likely):
            likely = [node for node in likely if node.position <= deepest]
        doubt, base, place = min(log(self._right / self._expected), 0.0), root.cost, root.position
        left: dict[Node | None, float] = {root: 1.0}
        """Probability that the target's path comes to a node and leaves the tree there."""
        survival = list[float]()
        for node in likely:
            chance = exp(base - node.cost + doubt * (node.position - place) + (gains[node] if shared else 0.0))
            survival.append(chance)
            left[node] = chance
            left[node.parent] -= chance
        self._root, self._offered = root, {}
        best = list[tuple[float, int, Node]]()
        for node, chance, mass in zip([root, *likely], [1.0, *survival], left.values()):
            if node.children:
                children = self._offered[node] = node.children.copy()
                named = sum(child.drafted for child in children.values()) if shared else len(children)
                if named >= width or mass <= self.tuning.least_open * chance:
                    continue
            if node.position < deepest:
                best.append((mass, -node.id, node))
        best.sort(reverse=True)
        return Outlook(root, likely[:most], survival[:most], self.shares, best[:sequences])

    def learn(self, tree: CandidateTree, width: int) -> None:
        """A round ended: counts which of the candidates that it decided on were the target's."""
        node, root = self._root, tree.root
        if node is None:
            return
        trust, offered = min(self._right / self._expected, 1.0), self._offered
        drafts = offered
        if self._shared:
            drafts = {one: {t: child for t, child in those.items() if child.drafted} for one, those in offered.items()}
        for token in tree.prefix.tokens[node.position + 1 : root.position + 1]:
            following = offered.get(node, {}).get(token)
            if (own := self._drafted.get(node)) is not None:
                chosen = own.tokens.index(token) if token in own.tokens else None
                self.calibrator.observe(own.costs, own.entropy, chosen)
            drafted = sorted(drafts.get(node, {}).values(), key=_cost)
            if drafted:  # what a draft proposed after a committed prefix, and the token that followed
                self._judged += 1
                self._best += drafted[0].token == token
                self._expected += sum([exp(node.cost - child.cost) for child in drafted])
                self._right += following in drafted
            if following is None:
                break
            node = following
        shares = self._shares
        for node, children in drafts.items():
            if len(children) >= width:
                self._full += 1
                for rank, cost in enumerate(sorted(map(_cost, children.values()))[: len(shares)]):
                    shares[rank] += trust * exp(node.cost - cost)
        self._offered, self._root = {}, None
        self._drafted = {node: own for node, own in self._drafted.items() if node in tree.tree}


def _gains(nodes: Iterable[Node]) -> Mapping[Node, float]:
    """Nats by which a path is likelier than its draft says, since sources without a model propose its nodes as well: as
    if each were right or wrong independently of the others. Parents come before their children."""
    gains: dict[Node, float] = {}
    for node in nodes:
        assert node.parent is not None
        wrong, own = 1.0, max(exp(min(node.parent.cost - node.cost, 0.0)), 1e-30)
        for chance in (node.evidence or {}).values():
            wrong *= 1 - chance
        combined = max(1 - wrong * (1 - own) if node.drafted else 1 - wrong, own)  # 1 - (1 - 1e-30) is 0
        gains[node] = gains.get(node.parent, 0.0) + log(combined / own)
    return gains
