"""Estimates of a candidate tree: how likely its nodes are the target's, and what another draft step would find.

A draft's probability of a token counts, times the ratio of correct to predicted candidates of that
drafter. Workers send calibrated probabilities, the local draft's are calibrated here, and what is left of their error
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
from operator import attrgetter
from typing import NamedTuple

from cloud_gateway.core.policies.tuning import TUNING, Tuning
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.core.verify.guide import AT_GATEWAY
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.calibration import Calibrator
from edgespec.core.drafting.tree import Node

_cost = attrgetter("cost")
EVEN = 0.5
"""A probability above it is more likely than not."""


class Opening(NamedTuple):
    """A node at which a draft step adds candidates."""

    chance: float
    """Probability that the target's path comes to this node and leaves the tree there."""
    order: int
    """Breaks ties: the older node comes first."""
    node: Node


class TreeEstimate:
    """The likely part of a tree: `nodes` come so that every head is closed under parents."""

    __slots__ = ("leaves", "nodes", "openings", "root", "shares", "survival")

    def __init__(
        self,
        root: Node,
        nodes: Sequence[Node],
        survival: Sequence[float],
        shares: Sequence[float],
        openings: Sequence[Opening],
    ) -> None:
        self.root = root
        self.nodes = nodes
        self.survival = survival
        """Probability of each of `nodes` that it is on the target's path, in falling order."""
        self.shares = shares
        """Probability of a node's children, best first: what a draft step is expected to find at each leaf."""
        self.openings = openings
        """Where a step adds most, best first."""
        self.leaves = [opening.node for opening in openings]

    def expected(self, leaves: int, shares: Sequence[float] = ()) -> list[float]:
        """Survival of what one more draft step over the best of `leaves` is expected to find; `shares`: a worker's."""
        return [opening.chance * share for opening in self.openings[:leaves] for share in shares or self.shares]


class Hits:
    """How often one drafter, the local draft or the workers, proposed what the target chose."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._best = tuning.match * tuning.prior_tokens
        """Prefixes whose next token was the best one proposed."""
        self._observed = tuning.prior_tokens
        """Prefixes whose next token was observed."""
        self._shares = [share * tuning.prior_tokens for share in tuning.shares]
        """Sums of the probabilities of children by rank."""
        self._full = tuning.prior_tokens
        """Nodes over which these are sums."""
        self._right = tuning.prior_tokens
        """Candidates that were the target's."""
        self._predicted = tuning.prior_tokens
        """Candidates that were expected to be the target's."""

    @property
    def shares(self) -> list[float]:
        """Mean probability of a likely node's children, best first."""
        return [share / self._full for share in self._shares]

    @property
    def match(self) -> float:
        """How often the best token was the target's."""
        return self._best / self._observed

    @property
    def tried(self) -> float:
        """Prefixes observed, beside those that the prior counts for."""
        return self._observed - self._tuning.prior_tokens

    @property
    def trust(self) -> float:
        """Ratio of correct to predicted candidates; at most 1."""
        return min(self._right / self._predicted, 1.0)

    def observe(self, *, hit: bool) -> None:
        """The children after a committed prefix were seen to hold the token that followed, or not.

        It is not known which child held it: each rank counts by its part.
        """
        self._observed += 1
        self._full += 1
        if hit:
            total = sum(self._shares)
            self._best += self._shares[0] / total
            self._shares = [share + share / total for share in self._shares]

    def followed(self, *, best: bool) -> None:
        """A token followed a prefix after which tokens were proposed. `best`: whether it was the best of them."""
        self._observed += 1
        self._best += best

    def chosen(self, predicted: float, *, right: bool) -> None:
        """Of candidates with so much probability in all, one was the target's or none."""
        self._predicted += predicted
        self._right += right

    def completed(self, chances: Iterable[float], trust: float) -> None:
        """A likely node has all the children that are asked for, with these probabilities, best first."""
        self._full += 1
        for rank, chance in zip(range(len(self._shares)), chances):
            self._shares[rank] += trust * chance

    def state(self) -> list[float]:
        """Sums over observations, as plain numbers; for at most `Tuning.first_interval` of them."""
        scale = min(1.0, self._tuning.first_interval / max(self._observed, self._full))
        counts = (self._best, self._observed, *self._shares, self._full)
        trust_scale = min(1.0, self._tuning.first_interval / self._predicted)
        return [*(count * scale for count in counts), self._right * trust_scale, self._predicted * trust_scale]

    def resume(self, state: Sequence[float]) -> None:
        """Goes on from such a state."""
        self._best, self._observed, *self._shares, self._full, self._right, self._predicted = state


class Walked(NamedTuple):
    """What a round has shown of the workers."""

    hits: int
    """Committed tokens that were candidates of a worker."""
    missed: bool
    """Whether a worker had candidates where the walk left the tree."""


class TreeModel:
    """Estimates one request's tree, and learns from what the target chose what candidates are worth."""

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self.tuning = tuning
        self.local = Hits(tuning)
        self.worker = Hits(tuning)
        """Of all workers together."""
        self.calibrator = Calibrator()
        """Of the local draft's probabilities."""
        self._offered: dict[Node, Mapping[int, Node]] = {}
        """The last estimate's root and likely nodes, with the children that they had then."""
        self._decided: tuple[CandidateTree, Node] | None = None
        """The last estimate's tree, with its root."""
        self._drafted: dict[Node, Proposal] = {}
        """What the local draft has proposed below nodes of the tree."""
        self.sources_help = False
        """Whether sources without a model have proposed anything."""
        self.workers_help = False
        """Whether any frame of a worker has come."""

    @property
    def here(self) -> Hits:
        """What the local draft is expected to find: by its own hits, once it was tried.

        Before, by the workers' hits, which most often have the same model, unless these are so few that the workers are
        likelier wrong.
        """
        untried = self.local.tried < min(self.tuning.prior_tokens, self.worker.tried)
        if untried and self.worker.match > EVEN:
            return self.worker
        return self.local

    def priced(self, leaves: Sequence[Node], proposals: Sequence[Proposal]) -> list[Proposal]:
        """The local draft's proposals at calibrated costs, as workers send them."""
        self._drafted |= zip(leaves, proposals)
        return [replace(proposal, costs=self._calibrated(proposal)) for proposal in proposals]

    def _calibrated(self, proposal: Proposal) -> list[float]:
        return [self.calibrator.cost(cost, proposal.entropy, rank) for rank, cost in enumerate(proposal.costs)]

    def estimate(
        self, tree: CandidateTree, sequences: int, width: int, deepest: float = inf, max_nodes: int = 1 << 30
    ) -> TreeEstimate:
        """The tree as it is, down to position `deepest`, where the completion will end, and its likely nodes.

        A local step takes up to `sequences` leaves and names `width` children of each.
        """
        root = tree.root
        nodes = tree.tree.nodes.values()
        self.sources_help = self.sources_help or root.revision > 0

        # One drafter whose doubt is the same for all nodes changes no order, so that its gains need not be computed.
        local_nats = log(self.local.trust)
        worker_nats = log(self.worker.trust)
        apart = self.workers_help and local_nats != worker_nats
        gains: Mapping[Node, float] = {}
        if apart:
            gains = self._gains(nodes, local_nats, worker_nats)
        elif self.sources_help:
            gains = self._gains(nodes, 0.0, 0.0)
        doubt = 0.0 if apart else local_nats

        by_cost = (lambda node: node.cost - gains[node]) if gains else _cost
        likely = sorted(nodes, key=by_cost)[: max_nodes + sequences]
        if likely and deepest - root.position < len(likely):
            likely = [node for node in likely if node.position <= deepest]

        leaving: dict[Node | None, float] = {root: 1.0}
        """Probability that the target's path comes to a node and leaves the tree there."""
        survival: list[float] = []
        for node in likely:
            nats = root.cost - node.cost + doubt * (node.position - root.position)
            chance = exp(nats + (gains[node] if gains else 0.0))
            survival.append(chance)
            leaving[node] = chance
            leaving[node.parent] -= chance

        self._decided = (tree, root)
        openings = self._openings([root, *likely], [1.0, *survival], list(leaving.values()), width, deepest)
        return TreeEstimate(root, likely[:max_nodes], survival[:max_nodes], self.here.shares, openings[:sequences])

    def _openings(
        self,
        nodes: Sequence[Node],
        survival: Sequence[float],
        leaving: Sequence[float],
        width: int,
        deepest: float,
    ) -> list[Opening]:
        """Where a draft step may add candidates, best first; keeps the children that nodes have now for `learn`."""
        self._offered = {}
        openings: list[Opening] = []
        for node, chance, mass in zip(nodes, survival, leaving):
            if node.children:
                children = self._offered[node] = node.children.copy()
                named = len(children)
                if self.sources_help:
                    named = sum(child.drafted for child in children.values())

                # If workers alone have drafted, a local pass may find more when theirs have hardly any probability.
                unlikely = mass > EVEN * chance and node not in self._drafted
                reopened = unlikely and any(child.remote for child in children.values())
                if (named >= width and not reopened) or mass <= 0:
                    continue
            if node.position < deepest:
                openings.append(Opening(mass, -node.id, node))
        openings.sort(reverse=True)
        return openings

    def _gains(self, nodes: Iterable[Node], local_nats: float, worker_nats: float) -> Mapping[Node, float]:
        """Nats by which a path is likelier than the costs in the tree say.

        More if a source without a model proposes its nodes as well, as if it were right or wrong independently of the
        draft; less by the doubt in the drafter of each node. Parents come before their children.
        """
        gains: dict[Node, float] = {}
        for node in nodes:
            assert node.parent is not None
            gain = gains.get(node.parent, 0.0)
            if self.sources_help:
                gain += _evidence(node)
            gains[node] = gain + (worker_nats if _by_worker(node) else local_nats)

        return gains

    def learn(self, width: int) -> Walked:
        """A round ended: counts which of the candidates that it decided on were the target's."""
        if self._decided is None:
            return Walked(0, missed=False)
        tree, root = self._decided

        local_trust = self.local.trust
        worker_trust = self.worker.trust
        walked = self._follow(tree, root)

        for node, children in self._offered.items():
            for drafter, proposed in self._proposed(node, children):
                if len(proposed) >= width:
                    falling = [exp(node.cost - cost) for cost in sorted(map(_cost, proposed))]
                    drafter.completed(falling, worker_trust if drafter is self.worker else local_trust)

        self._offered = {}
        self._decided = None
        self._drafted = {node: proposal for node, proposal in self._drafted.items() if node in tree.tree}
        return walked

    def _follow(self, tree: CandidateTree, node: Node) -> Walked:
        """Walks down the committed tokens while they were candidates, and counts who proposed them."""
        tokens_hit = 0
        for token in tree.prefix.tokens[node.position + 1 : tree.root.position + 1]:
            children = self._offered.get(node, {})
            following = children.get(token)

            proposal = self._drafted.get(node)
            if proposal is not None:
                if token in proposal.tokens:
                    rank = proposal.tokens.index(token)
                else:
                    rank = None
                self.calibrator.observe(proposal.costs, proposal.entropy, rank)

            for drafter, proposed in self._proposed(node, children):
                drafter.followed(best=min(proposed, key=_cost).token == token)

            drafted = sorted([child for child in children.values() if child.drafted], key=_cost)
            by_worker = [child for child in drafted if _by_worker(child)]
            by_local = [child for child in drafted if not _by_worker(child)]
            for hits, candidates in ((self.worker, by_worker), (self.local, by_local)):
                if candidates:  # their costs are their owner's
                    predicted = sum([exp(node.cost - child.cost) for child in candidates])
                    hits.chosen(predicted, right=following in candidates)

            if following is None:
                return Walked(tokens_hit, missed=any(child.remote for child in drafted))
            tokens_hit += following.remote
            node = following

        return Walked(tokens_hit, missed=False)

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
    """Nats by which a node is likelier than its draft says, since sources without a model propose it as well.

    Such sources find one text again, often in the same place, so that the surest of them says all that they know.
    """
    assert node.parent is not None
    by_draft = max(exp(min(node.parent.cost - node.cost, 0.0)), 1e-30)
    surest = max((node.evidence or {}).values(), default=0.0)
    if node.drafted:
        any_right = 1 - (1 - surest) * (1 - by_draft)
    else:
        any_right = surest
    return log(max(any_right, by_draft) / by_draft)  # 1 - (1 - 1e-30) is 0
