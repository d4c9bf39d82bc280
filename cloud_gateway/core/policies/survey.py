"""What a candidate tree holds: how likely its nodes are the target's, and what another draft step would find.

A draft's probability of a token counts, times how often that drafter's candidates were right for each time they said
so. Workers send calibrated probabilities, the local draft's are calibrated here, and what is left of their error
differs little from token to token.

Local draft and workers are counted apart. They are one model in most places, and one count for both learns faster, but
a worker whose drafts are wrong then takes away the gateway's own draft as well: a local pass seems to find nothing, so
that none is made, so that nothing better is learnt. Who drafted a node is its `owner`; what the local draft proposed
below a node is kept beside, since a token that a worker has named already keeps the worker as its owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, inf, log
from operator import attrgetter, itemgetter
from typing import NamedTuple

from cloud_gateway.core.policies.tuning import TUNING, Tuning
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.core.verify.guide import AT_GATEWAY
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

    def found(self, leaves: int, shares: Sequence[float] = ()) -> list[float]:
        """Survival of what one more draft step over the best of `leaves` is expected to find; `shares`: a worker's."""
        return [mass * share for mass, _, _ in self.best[:leaves] for share in shares or self.shares]

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


class Hits:
    """How often one drafter, the local draft or the workers, proposed what the target chose."""

    def __init__(self, tuning: Tuning, trust: float) -> None:
        """`trust`: candidates for which the drafter's own probabilities count as right before any was judged."""
        rest = (tuning.named - tuning.match) / 2
        self._tuning = tuning
        self._best = tuning.match * tuning.prior
        self._judged = tuning.prior
        """Prefixes whose next token was the best one proposed, and all that were judged."""
        self._shares = [share * tuning.prior for share in (tuning.match, rest, rest / 2, rest / 2)]
        self._full = tuning.prior
        """Sums of the probabilities of children by rank, and the nodes over which they are sums."""
        self._right = trust
        self._expected = trust
        """Candidates that were the target's, and how many were expected to be."""

    @property
    def shares(self) -> list[float]:
        """Mean probability of a likely node's children, best first."""
        return [share / self._full for share in self._shares]

    @property
    def match(self) -> float:
        """How often the best token was the target's."""
        return self._best / self._judged

    @property
    def tried(self) -> float:
        """Prefixes judged, beside those that the prior counts for."""
        return self._judged - self._tuning.prior

    @property
    def trust(self) -> float:
        """Share of the candidates expected to be right that were; at most 1."""
        return min(self._right / self._expected, 1.0)

    def judged(self, *, hit: bool) -> None:
        """The children after a committed prefix were seen to hold the token that followed, or not. Which child held it
        is not known: each rank counts by its share."""
        self._judged += 1
        self._full += 1
        if hit:
            named = sum(self._shares)
            self._best += self._shares[0] / named
            self._shares = [share + share / named for share in self._shares]

    def followed(self, *, best: bool) -> None:
        """A token followed a prefix after which tokens were proposed. `best`: whether it was the best of them."""
        self._judged += 1
        self._best += best

    def chosen(self, expected: float, *, right: bool) -> None:
        """Of candidates with so much probability in all, one was the target's or none."""
        self._expected += expected
        self._right += right

    def named(self, chances: Iterable[float], trust: float) -> None:
        """A likely node has all the children that are asked for, with these probabilities, best first."""
        self._full += 1
        for rank, chance in zip(range(len(self._shares)), chances):
            self._shares[rank] += trust * chance

    def state(self) -> list[float]:
        """Sums over observations, as plain numbers; for at most `Tuning.carried` of them."""
        scale = min(1.0, self._tuning.carried / max(self._judged, self._full))
        trusted = min(1.0, self._tuning.carried / self._expected)
        counts = (self._best, self._judged, *self._shares, self._full)
        return [*(count * scale for count in counts), self._right * trusted, self._expected * trusted]

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state."""
        self._best, self._judged, *self._shares, self._full, self._right, self._expected = state


class Walked(NamedTuple):
    """What a round has shown of the workers."""

    hits: int
    """Committed tokens that were candidates of a worker."""
    missed: bool
    """Whether a worker had candidates where the walk left the tree."""


class Surveyor:
    """Looks at one request's tree, and learns from what the target chose what candidates are worth."""

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self.tuning = tuning
        self.local = Hits(tuning, tuning.trust)
        self.worker = Hits(tuning, tuning.worker_trust)
        """Of all workers together."""
        self.calibrator = Calibrator()
        """Of the local draft's probabilities."""
        self._offered: dict[Node, Mapping[int, Node]] = {}
        """The last look's root and likely nodes, with the children that they had then."""
        self._root: Node | None = None
        self._drafted: dict[Node, Proposal] = {}
        """What the local draft has proposed below nodes of the tree."""
        self._sources_help = False
        """Whether sources without a model have proposed anything."""
        self.workers_help = False
        """Whether any frame of a worker has come."""

    @property
    def here(self) -> Hits:
        """What the local draft is expected to find: by its own hits, once it was tried. Before, by the workers', which
        most often have the same model, unless these are so few that the workers are likelier wrong."""
        untried = self.local.tried < min(self.tuning.prior, self.worker.tried)
        return self.worker if untried and self.worker.match > self.tuning.plausible else self.local

    def priced(self, leaves: Sequence[Node], proposals: Sequence[Proposal]) -> list[Proposal]:
        """The local draft's proposals at calibrated costs, as workers send them."""
        self._drafted |= zip(leaves, proposals)
        return [replace(proposal, costs=self._calibrated(proposal)) for proposal in proposals]

    def _calibrated(self, proposal: Proposal) -> list[float]:
        return [self.calibrator.cost(cost, proposal.entropy, rank) for rank, cost in enumerate(proposal.costs)]

    def look(
        self, tree: CandidateTree, sequences: int, width: int, deepest: float = inf, most: int = 1 << 30
    ) -> Outlook:
        """The tree as it is, down to position `deepest`, where the completion will end, and its `most` likely nodes.

        A local step takes up to `sequences` leaves and names `width` children of each."""
        root = tree.root
        nodes = tree.tree.nodes.values()
        shared = self._sources_help = self._sources_help or root.revision > 0
        local, worker = log(self.local.trust), log(self.worker.trust)
        apart = self.workers_help and local != worker
        gains = self._gains(nodes, (local, worker) if apart else (0.0, 0.0)) if apart or shared else {}

        likely = sorted(nodes, key=(lambda node: node.cost - gains[node]) if gains else _cost)[: most + sequences]
        if likely and deepest - root.position < len(likely):
            likely = [node for node in likely if node.position <= deepest]

        doubt = 0.0 if apart else local
        base, place = root.cost, root.position
        left: dict[Node | None, float] = {root: 1.0}
        """Probability that the target's path comes to a node and leaves the tree there."""
        survival = list[float]()
        for node in likely:
            chance = exp(base - node.cost + doubt * (node.position - place) + (gains[node] if gains else 0.0))
            survival.append(chance)
            left[node] = chance
            left[node.parent] -= chance

        self._root, self._offered = root, {}
        best = list[tuple[float, int, Node]]()
        for node, chance, mass in zip([root, *likely], [1.0, *survival], left.values()):
            if node.children:
                children = self._offered[node] = node.children.copy()
                named = sum(child.drafted for child in children.values()) if shared else len(children)
                # Where workers alone have drafted, a local pass may find more if theirs have hardly any probability.
                unlikely = mass > self.tuning.unlikely * chance and node not in self._drafted
                closed = named >= width and not (unlikely and any(child.remote for child in children.values()))
                if closed or mass <= self.tuning.least_open * chance:
                    continue
            if node.position < deepest:
                best.append((mass, -node.id, node))
        best.sort(reverse=True)
        return Outlook(root, likely[:most], survival[:most], self.here.shares, best[:sequences])

    def _gains(self, nodes: Iterable[Node], doubts: tuple[float, float]) -> Mapping[Node, float]:
        """Nats by which a path is likelier than the costs in the tree say: more if sources without a model propose its
        nodes as well, as if each were right or wrong independently of the others; less by the doubt in the drafter of
        each node. `doubts`: in the local draft and in workers, nats. Parents come before their children."""
        local, worker = doubts
        gains: dict[Node, float] = {}
        for node in nodes:
            assert node.parent is not None
            gain = gains.get(node.parent, 0.0)
            if self._sources_help:
                gain += _evidence(node)
            gains[node] = gain + (worker if _by_worker(node) else local)
        return gains

    def learn(self, tree: CandidateTree, width: int) -> Walked:
        """A round ended: counts which of the candidates that it decided on were the target's."""
        node, root = self._root, tree.root
        if node is None:
            return Walked(0, missed=False)
        offered = self._offered
        trusts = {id(hits): hits.trust for hits in (self.local, self.worker)}
        tokens_hit = 0
        missed = False
        for token in tree.prefix.tokens[node.position + 1 : root.position + 1]:
            children = offered.get(node, {})
            following = children.get(token)
            proposal = self._drafted.get(node)
            if proposal is not None:
                chosen = proposal.tokens.index(token) if token in proposal.tokens else None
                self.calibrator.observe(proposal.costs, proposal.entropy, chosen)

            for drafter, proposed in self._proposed(node, children):
                drafter.followed(best=min(proposed, key=_cost).token == token)
            drafted = sorted([child for child in children.values() if child.drafted], key=_cost)
            by_worker = [child for child in drafted if _by_worker(child)]
            by_local = [child for child in drafted if not _by_worker(child)]
            for hits, owned in ((self.worker, by_worker), (self.local, by_local)):
                if owned:  # the costs are its owner's
                    hits.chosen(sum([exp(node.cost - child.cost) for child in owned]), right=following in owned)

            if following is None:
                missed = any(child.remote for child in drafted)
                break
            tokens_hit += following.remote
            node = following

        for node, children in offered.items():
            for drafter, proposed in self._proposed(node, children):
                if len(proposed) >= width:
                    falling = [exp(node.cost - cost) for cost in sorted(map(_cost, proposed))]
                    drafter.named(falling, trusts[id(drafter)])
        self._offered, self._root = {}, None
        self._drafted = {node: proposal for node, proposal in self._drafted.items() if node in tree.tree}
        return Walked(tokens_hit, missed)

    def _proposed(self, node: Node, children: Mapping[int, Node]) -> Iterator[tuple[Hits, Sequence[Node]]]:
        """Whose hits the children of a node count for, and which of them: all that workers proposed, and all that the
        local draft did. A child of both counts for both."""
        drafted = [child for child in children.values() if child.drafted]
        by_worker = [child for child in drafted if child.remote]
        by_local = [child for child in drafted if not child.remote]
        proposal = self._drafted.get(node)
        if proposal is not None:
            by_local = [children[token] for token in proposal.tokens if token in children]
        if by_worker:
            yield self.worker, by_worker
        if by_local:
            yield self.local, by_local


def _by_worker(node: Node) -> bool:
    """Whether a worker drafted it."""
    return node.drafted and node.owner not in AT_GATEWAY


def _evidence(node: Node) -> float:
    """Nats by which a node is likelier than its draft says, since sources without a model propose it as well."""
    assert node.parent is not None
    wrong, own = 1.0, max(exp(min(node.parent.cost - node.cost, 0.0)), 1e-30)
    for chance in (node.evidence or {}).values():
        wrong *= 1 - chance
    combined = max(1 - wrong * (1 - own) if node.drafted else 1 - wrong, own)  # 1 - (1 - 1e-30) is 0
    return log(combined / own)
