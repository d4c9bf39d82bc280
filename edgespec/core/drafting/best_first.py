"""The worker's best-first rule: Algorithm 2 with a wider tree, ordered by calibrated path probability.

Every level that is evaluated on the target's own path saves one draft step, wherever it lies. So the leaves most likely
to be on that path are evaluated first, and a node's children are sent as soon as they are likely enough, up to four
rather than two. Preferring shallow or deep leaves was worse (dev/decisions/000-first-thirty.md, 009).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from edgespec.core.drafting.algorithm2 import Drafting, DraftRule, Proposal
from edgespec.core.drafting.calibration import Calibrator
from edgespec.core.drafting.ranking import Ranker, Spread
from edgespec.core.drafting.settings import MAX_STEP_LEAVES
from edgespec.core.drafting.tree import Node
from edgespec.core.numbers import index_of
from edgespec.core.protocol.messages import Open, Sampling


def paced(worths: Iterable[float], step_s: Callable[[int], float]) -> int:
    """How many leaves, of these worths in their order, maximise the progress that is expected in a second.

    Progress is the number of levels that get ahead on the target's path, and so the sum of the probabilities of the
    leaves: those of their paths, by the calibrated match rates of each rank.
    """
    best = 0.0
    count = 1
    gained = 0.0
    for size, worth in enumerate(worths, 1):
        gained += worth
        pace = gained / step_s(size)
        if pace > best:
            best = pace
            count = size

    return count


@dataclass(frozen=True, slots=True)
class BestFirstRule(DraftRule):
    """`theta` is not used: the number of a node's children follows from their probabilities."""

    branching: int = 4
    sequences: int = MAX_STEP_LEAVES
    floor: float = 1e-3
    """Minimum probability of a path, from the last committed token on, for its last node to be sent."""


class BestFirst(Drafting):
    """`Drafting` with the best-first rule; the messages are the same."""

    def __init__(
        self,
        request: int,
        epoch: int,
        prompt_len: int,
        rule: BestFirstRule | None = None,
        *,
        calibrator: Calibrator | None = None,
        step_s: Callable[[int], float] | None = None,
    ) -> None:
        """`step_s`: seconds of a draft step over so many leaves; with it the number of leaves follows the curve."""
        self.best_first = rule or BestFirstRule()
        super().__init__(request, epoch, prompt_len, self.best_first)
        self.calibrator = calibrator or Calibrator()
        self.calibrator.begin()
        self.step_s = step_s
        self._pending: dict[Node, Sequence[tuple[int, float, float]]] = {}
        """Children not sent yet: token, calibrated cost, entropy, best first."""
        self._proposed: dict[Node, Proposal] = {}

    def commit(
        self,
        prefix_len: int,
        tokens: Sequence[int],
        digest: bytes | None = None,
        *,
        chosen: bool = True,
    ) -> int:
        """Also updates the calibration from chosen tokens, and adds the children that are now likely enough."""
        if chosen and len(self.prefix) >= self.prompt_len:
            self._learn(tokens)
        matched = super().commit(prefix_len, tokens, digest, chosen=chosen)

        pending = self._pending
        self._pending = {}
        for node, children in pending.items():
            if node in self.tree:
                self._emit(node, children)
        self._proposed = {node: proposal for node, proposal in self._proposed.items() if node in self.tree}
        return matched

    def candidates(self) -> list[Node]:
        """The most probable leaves; with `step_s` as many as `paced` says."""
        leaves = super().candidates()
        if self.step_s:
            return leaves[: paced(map(self.chance, leaves), self.step_s)]
        return leaves

    def record(self, candidates: Sequence[Node], proposals: Sequence[Proposal]) -> None:
        """Grows the tree by a step's results; those of nodes that a commit has pruned meanwhile are dropped."""
        for node, proposal in zip(candidates, proposals, strict=True):
            if node not in self.tree or node.expanded:
                continue

            node.expanded = True
            self._proposed[node] = proposal
            width = self.rule.branching
            entropy = proposal.entropy
            children: list[tuple[int, float, float]] = []
            for rank, cost in enumerate(proposal.costs[:width]):
                calibrated = self.calibrator.cost(cost, entropy, rank)
                children.append((proposal.tokens[rank], calibrated, entropy))
            self._emit(node, children)

    def _emit(self, node: Node, children: Sequence[tuple[int, float, float]]) -> None:
        """Adds the children above the floor, the root's all; keeps the others for later."""
        floor = self.best_first.floor
        max_cost = math.inf
        if floor and node is not self.tree.root:
            max_cost = self.tree.root.cost - math.log(floor)

        for i, (token, cost, entropy) in enumerate(children):
            if node.cost + cost > max_cost:
                self._pending[node] = children[i:]
                return

            child = self.tree.append(node, token, cost, entropy)
            self._unsent.append(child)

    def _learn(self, tokens: Sequence[int]) -> None:
        """Calibrates each proposal along committed tokens, as far as there are some."""
        width = self.rule.branching
        node = self.tree.root
        for token in tokens:
            proposal = self._proposed.get(node)
            if proposal is None:
                return

            chosen = index_of(proposal.tokens[:width], token)
            self.calibrator.observe(proposal.costs[:width], proposal.entropy, chosen)
            child = node.children.get(token)
            if child is None:
                return
            node = child


class MakeDrafting(Protocol):
    """Makes the state of a request that the best-first rule drafts for: `BestFirst`, or one in other tokens."""

    def __call__(
        self,
        request: int,
        epoch: int,
        prompt_len: int,
        rule: BestFirstRule,
        *,
        calibrator: Calibrator,
    ) -> Drafting:
        """`calibrator`: shared by all requests."""


class MakeRanker(Protocol):
    """Makes what ranks the draft tokens of a request."""

    def __call__(self, sampling: Sampling, drafting: Drafting, spread: Spread) -> Ranker:
        """`spread`: shared by all requests."""


def rank_by_target(sampling: Sampling, drafting: Drafting, spread: Spread) -> Ranker:
    """Ranks draft tokens that are the target's by the probability that the target takes them (ranking.py)."""
    return Ranker(sampling, drafting.to_read, spread=spread, resolved=True)


@dataclass(slots=True)
class Starts:
    """How a worker begins a request: the rule, and what all requests have taught about the pair of models."""

    rule: DraftRule
    make: MakeDrafting = BestFirst
    """For the best-first rule; Algorithm 2 drafts in the draft model's own tokens."""
    rank: MakeRanker = rank_by_target
    _spread: Spread = field(default_factory=Spread)
    _calibrator: Calibrator = field(default_factory=Calibrator)

    def drafting(self, message: Open) -> Drafting:
        """The state of a request, with its first tokens."""
        request = (message.request, message.epoch, message.prompt_len)
        if isinstance(self.rule, BestFirstRule):
            drafting = self.make(*request, self.rule, calibrator=self._calibrator)
        else:
            drafting = Drafting(*request, self.rule)

        drafting.commit(0, message.tokens)
        return drafting

    def ranker(self, message: Open, drafting: Drafting) -> Ranker:
        """Orders the request's draft tokens; `drafting`: its state."""
        return self.rank(message.sampling, drafting, self._spread)
