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
from edgespec.core.protocol.messages import Open


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
        self, prefix_len: int, tokens: Sequence[int], digest: bytes | None = None, *, chosen: bool = True
    ) -> int:
        """Also updates the calibration from chosen tokens, and adds the children that are now likely enough."""
        if chosen and len(self.prefix) >= self.prompt_len:
            self._learn(tokens)
        matched = super().commit(prefix_len, tokens, digest, chosen=chosen)
        pending = [(node, rest) for node, rest in self._pending.items() if node in self.tree]
        self._pending = {}
        for node, rest in pending:
            self._emit(node, rest)
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
            self._emit(node, [
                (token, self.calibrator.cost(cost, proposal.entropy, rank), proposal.entropy)
                for rank, (token, cost) in enumerate(zip(proposal.tokens[:width], proposal.costs[:width], strict=True))
            ])  # fmt: skip

    def _emit(self, node: Node, children: Sequence[tuple[int, float, float]]) -> None:
        """Adds the children above the floor, the root's all; keeps the others for later."""
        floor = self.best_first.floor
        if node is self.tree.root or not floor:
            least = math.inf
        else:
            least = self.tree.root.cost - math.log(floor)
        for i, (token, cost, entropy) in enumerate(children):
            if node.cost + cost > least:
                self._pending[node] = children[i:]
                return
            self._unsent.append(self.tree.append(node, token, cost, entropy))

    def _learn(self, tokens: Sequence[int]) -> None:
        node = self.tree.root
        for token in tokens:
            proposal = self._proposed.get(node)
            if proposal is None:
                return
            width = self.rule.branching
            named = list(proposal.tokens[:width])
            chosen = named.index(token) if token in named else None
            self.calibrator.observe(proposal.costs[:width], proposal.entropy, chosen)
            following = node.children.get(token)
            if following is None:
                return
            node = following


class MakeDrafting(Protocol):
    """Makes the state of a request that the best-first rule drafts for: `BestFirst`, or one in other tokens."""

    def __call__(
        self, request: int, epoch: int, prompt_len: int, rule: BestFirstRule, *, calibrator: Calibrator
    ) -> Drafting:
        """`calibrator`: shared by all requests."""


@dataclass(slots=True)
class Starts:
    """How a worker begins a request: the rule, and what all requests have taught about the pair of models."""

    rule: DraftRule
    make: MakeDrafting = BestFirst
    """For the best-first rule; Algorithm 2 drafts in the draft model's own tokens."""
    _spread: Spread = field(default_factory=Spread)
    _calibrator: Calibrator = field(default_factory=Calibrator)

    def drafting(self, message: Open) -> Drafting:
        """The state of a request, with its first tokens."""
        if isinstance(self.rule, BestFirstRule):
            drafting = self.make(
                message.request, message.epoch, message.prompt_len, self.rule, calibrator=self._calibrator
            )
        else:
            drafting = Drafting(message.request, message.epoch, message.prompt_len, self.rule)

        drafting.commit(0, message.tokens)
        return drafting

    def ranker(self, message: Open, drafting: Drafting) -> Ranker:
        """Orders draft tokens by the probability that the target takes them, not by the draft's own (ranking.py)."""
        ranked_by = drafting.ranked_by(message.sampling)
        read = drafting.to_read
        noise = drafting.noise
        return Ranker(ranked_by, read, spread=self._spread, resolved=True, noise=noise)
