"""Classic speculative sampling, min(1, p/q) with the residual, over chains and trees, for drafts made at the gateway.

A node's siblings are drawn from the draft's q without replacement, and tried in the order drawn (multi-round rejection:
SpecInfer; without replacement: Jeon et al. 2024, "Recursive Speculative Decoding"; one sibling: Leviathan et al. 2023):

    for x in siblings:     accept x with probability min(1, p(x) / q(x))
                           else  p <- normalise(max(p - q, 0)),  q <- normalise(q without x)
    after the last:        a sample of p

What comes out is an exact sample of p, if three things hold, and this module is built so that they do:

- q is what the sibling was really drawn from. So only a `LocalDraftDistribution`, which draws its own siblings, is
  taken: never probabilities off the wire, with which a worker could force tokens.
- The draws and the tests use fresh randomness. The shared noise (`edgespec.core.sampling.gumbel`) has no place here:
  given that the draft chose x by it, it is no longer uniform, and both test and residual would be biased.
- All siblings drawn are tried, in their order. Verifying fewer of them only ends the walk sooner; skipping the test of
  one because of what it is would be biased.

All arrays have a leading axis of independent trials, of length 1 in the gateway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.core.verify.interface import Constraint
from cloud_gateway.core.verify.shared_noise import Rows, path_to
from cloud_gateway.core.verify.verification import CompletionStart, Method, Verification
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.protocol.messages import Sampling
from edgespec.core.sampling.logits import Candidates, History, Processor

Floats = NDArray[np.float64]
Tokens = NDArray[np.int64]

NONE = -1
"""In place of a sibling where q has no further token of positive probability."""


@dataclass(frozen=True, slots=True)
class LocalDraftDistribution:
    """q after one node, shape [trials, vocab_size], and the siblings drawn from it in order, [trials, width].

    Made by `Rejection.draw` alone: q and the draws belong together, or the answer is not the target's.
    """

    q: Floats
    siblings: Tokens


class Rejection:
    """The draws and tests of one answer (or of many trials at once), from one generator of fresh randomness."""

    def __init__(self, rng: np.random.Generator) -> None:
        """`rng` is seeded from the system for each answer, and never with the request's seed."""
        self._rng = rng

    def draw(self, q: Floats, width: int) -> LocalDraftDistribution:
        """Draws `width` different siblings per trial; fewer (NONE at the end) where q's support is smaller."""
        left = q.copy()
        siblings = np.full((len(q), width), NONE, np.int64)
        for i in range(width):
            any_left = left.sum(axis=1) > 0
            siblings[:, i] = np.where(any_left, self.sample(left), NONE)
            left = self.without(left, siblings[:, i])

        return LocalDraftDistribution(q, siblings)

    def token(self, p: Floats, draft: LocalDraftDistribution) -> Tokens:
        """The target's token after the node, one per trial: an accepted sibling, or a sample of the last residual.

        `p` has shape [trials, vocab_size].
        """
        if not isinstance(draft, LocalDraftDistribution):
            raise TypeError("only drafts that the gateway drew itself may enter the p/q test")

        p = p.copy()
        q = draft.q / draft.q.sum(axis=1, keepdims=True)
        result = np.full(len(p), NONE, np.int64)

        for sibling in draft.siblings.T:
            pending = np.flatnonzero((result == NONE) & (sibling != NONE))
            tried = sibling[pending]
            accepted = self.uniform(len(pending)) * q[pending, tried] < p[pending, tried]
            result[pending[accepted]] = tried[accepted]

            rejected = pending[~accepted]
            p[rejected] = self.residual(p[rejected], q[rejected])
            q[rejected] = self.without(q[rejected], sibling[rejected])

        pending = np.flatnonzero(result == NONE)
        result[pending] = self.sample(p[pending])
        return result

    def uniform(self, count: int) -> Floats:
        """Fresh numbers in [0, 1) for the tests of one round of siblings."""
        return self._rng.random(count)

    def residual(self, p: Floats, q: Floats) -> Floats:
        """What p has beyond q, normalised. Where that is nothing, p and q are equal and only rounding rejected: p."""
        rest: Floats = np.maximum(p - q, 0)
        total = rest.sum(axis=1, keepdims=True)
        rest[total[:, 0] > 0] /= total[total[:, 0] > 0]
        rest[total[:, 0] <= 0] = p[total[:, 0] <= 0]
        return rest

    def without(self, q: Floats, tokens: Tokens) -> Floats:
        """q with one token of each trial removed, normalised; all zero where nothing is left."""
        left = q.copy()
        trials = np.flatnonzero(tokens != NONE)
        left[trials, tokens[trials]] = 0
        total = left.sum(axis=1, keepdims=True)
        return left / np.where(total > 0, total, 1)

    def sample(self, p: Floats) -> Tokens:
        """One token per trial by inverting the cumulated p, which need not be normalised."""
        cumulated = np.cumsum(p, axis=1)
        total = cumulated[:, -1:]
        index: Tokens = (cumulated <= self._rng.random((len(p), 1)) * total).sum(axis=1)

        # Rounding may land at the very end: then the last token of positive probability is meant.
        np.minimum(index, np.argmax(cumulated >= total, axis=1), out=index)
        return index


class RejectionChooser:
    """The draws and choices of one completion: a `Verification` with fresh randomness instead of a seed.

    The local draft calls `rank`. What it drew after a path stands until the completion has passed there, so siblings
    are drawn once, however often a node is drafted. Other candidates in the tree, also a worker's, are matched against
    what the tests leave, which is lossless for any drafter.
    """

    by_match = False

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        rng: np.random.Generator,
        *,
        constraint: Constraint | None = None,
    ) -> None:
        """`constraint` restricts the target alone: what it forbids has p = 0 and is never accepted."""
        self.processor = Processor(sampling)
        self.rejection = Rejection(rng)
        self.history = History(prompt)
        self.constraint = constraint
        self._drawn: dict[tuple[int, ...], LocalDraftDistribution] = {}

        # A prior that is worth ten tests.
        self._accepted = 7.0
        self._tested = 10.0

    def draft(self, logits: NDArray[np.float32], path: Sequence[int], width: int) -> LocalDraftDistribution:
        """The siblings after `path`, drawn now from the draft model's raw `logits` by the request's own processing, or
        before."""
        key = tuple(path)
        if key not in self._drawn:
            q = self._distribution(logits, path)
            self._drawn[key] = self.rejection.draw(q, width)
        return self._drawn[key]

    def rank(self, logits: NDArray[np.float32], path: Sequence[int], width: int) -> Proposal:
        """`draft` as the draft model's `Rank`: the siblings in the order drawn, priced by how often one is accepted.

        Once drawn, a sibling's own q says nothing: it is accepted with probability sum(min(p, q)) on the average.
        """
        drawn = self.draft(logits, path, width)
        tokens = [token for token in drawn.siblings[0].tolist() if token != NONE]
        accepted_cost = -math.log(self._acceptance)
        rejected_cost = -math.log1p(-self._acceptance)
        costs = [accepted_cost + i * rejected_cost for i in range(len(tokens))]
        return Proposal(tokens, costs, _entropy(drawn.q[0]))

    def at(self, flat: FlatTree, rows: Rows) -> Callable[[int], int]:
        """The target's choice at a row, as `accept.walk` wants it."""

        def choose(row: int) -> int:
            path = path_to(flat, row)
            allowed = None
            if self.constraint is not None:
                allowed = self.constraint(path)
            p = self._distribution(rows.logits(row), path, allowed)

            draft = self._drawn.get(tuple(path))
            if draft is None:
                return int(self.rejection.sample(p)[0])

            token = int(self.rejection.token(p, draft)[0])
            self._accepted += token == draft.siblings[0, 0]
            self._tested += 1
            return token

        return choose

    def committed(self, tokens: Sequence[int]) -> None:
        self.history.extend(tokens)
        path = tuple(tokens)
        below = {drawn_at: draft for drawn_at, draft in self._drawn.items() if drawn_at[: len(path)] == path}
        self._drawn = {drawn_at[len(path) :]: draft for drawn_at, draft in below.items()}

    @property
    def _acceptance(self) -> float:
        """Share of first siblings that were accepted so far."""
        return self._accepted / (self._tested + 1)

    def _distribution(
        self, logits: NDArray[np.float32], path: Sequence[int], allowed: NDArray[np.bool_] | None = None
    ) -> Floats:
        candidates = self.processor.candidates(logits, self.history, path, allowed)
        return probabilities(candidates, len(logits))[None, :]


def probabilities(candidates: Candidates, vocab_size: int) -> Floats:
    """The distribution over the whole vocabulary; shape [vocab_size], sums to 1."""
    weights: Floats = np.exp(candidates.dense(vocab_size) - candidates.logits.max())
    weights /= weights.sum()
    return weights


def _entropy(q: Floats) -> float:
    """Nats."""
    positive = q[q > 0]
    return max(-float((positive * np.log(positive)).sum()), 0.0)


def _begin(start: CompletionStart) -> Verification:
    return RejectionChooser(start.sampling, start.prompt, start.fresh(), constraint=start.constraint)


REJECTION = Method("rejection", seeded=False, begin=_begin)
