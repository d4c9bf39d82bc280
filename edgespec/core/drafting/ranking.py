"""The worker's draft tokens, ranked with the target's own noise (docs/numerics.md).

The target takes argmax_v(z(v) / T + g(v)) of its adjusted logits z. The worker has T, g, and the draft's logits z'.
If the errors z - z' were independent Gumbel noise of scale s, the target would take v with probability

    softmax_v( (z'(v) + T g(v)) / s )

by which this module ranks and prices. The *spread* s, in logits, measures how far draft and target disagree. It is a
property of the pair and the same at every temperature, greedy included (T = 0), as docs/numerics.md shows on data. It
is estimated online from the target's choices. With s = 1 and T = 0 a cost is WANSpec's -log q.

A ranking is a `Rank`, from a row of logits to the children of a node; `best_children` is the plain one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.numbers import index_of
from edgespec.core.protocol.messages import MAX_COST, Sampling
from edgespec.core.sampling.gumbel import shortlist
from edgespec.core.sampling.logits import (
    Candidates,
    History,
    Processor,
    entropy,
    finite,
)

TokenPath = tuple[int, ...]
"""A node of the speculation tree, by its tokens below the committed prefix; () is the prefix's end."""

Rank = Callable[[NDArray[np.float32], TokenPath, int], Proposal]
"""`rank(logits, path, width)` chooses the children of one node.

`logits`: raw float32 row, shape [vocab_size], read-only and valid during the call only. `path`: the node. `width`:
maximum number of children; there may be fewer, for example under top-k. The proposal lists the best first; its costs
and entropy are those of the distribution after the ranker's processing.
"""


_FAINTEST = np.float32(150.0)


class Asked(NamedTuple):
    """One request's part of a draft step: its leaves, and the most children of each."""

    request: Hashable
    paths: Sequence[TokenPath]
    width: int = 1
    rank: Rank | None = None
    """None: `best_children`."""


def best_children(logits: NDArray[np.float32], path: TokenPath, width: int) -> Proposal:
    """The plain `Rank`: the most probable tokens of the softmax, ties by id.

    Infinite logits count as in `Processor.candidates`; a cost is at most `_FAINTEST`, where exp(-cost) is 0 in float32.
    """
    logits = finite(logits)
    with np.errstate(over="ignore"):  # logits further apart than float32 reaches
        shifted = logits - logits.max()
    np.maximum(shifted, -_FAINTEST, out=shifted)

    weights = np.exp(shifted)
    total = float(weights.sum())
    log_total = math.log(total)
    tokens = largest(logits, width)
    costs = log_total - shifted[tokens].astype(np.float64)
    entropy = max(log_total - float(weights @ shifted) / total, 0.0)
    return Proposal(tokens.tolist(), costs.tolist(), entropy)


def largest(scores: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """Indices of the `count` largest scores, best first, ties by index.

    Twenty times as fast as `argpartition` on 49,152 scores: at least `count` scores reach the `count`-th largest of
    the maxima of some 256 blocks, and hardly any others do.
    """
    starts = np.arange(0, len(scores), max(len(scores) // 256, 1))
    maxima = np.maximum.reduceat(scores, starts)
    if count < len(maxima):
        bound = np.partition(maxima, -count)[-count]
        near = np.flatnonzero(scores >= bound)
    else:
        near = np.arange(len(scores))

    order = np.argsort(-scores[near], kind="stable")
    return near[order[:count]]


Floats = NDArray[np.float64]
Tokens = NDArray[np.int64]

_REACH = 16.0
"""Tokens whose score is further below the best one, in spreads, have negligible probability."""
_EVERYTHING_NATS = 1e6
_FAINT = 80.0
"""exp(-80) adds nothing to a sum in which there is a 1."""
_SMALL = 4096
"""Number of scores up to which float64 is as fast as float32."""
_KEPT = 16
"""Best tokens of a row that are stored to estimate the spread."""
_OUTSIDE_NATS = 7.0
"""Cost, in the estimate, of a choice that was not among them."""


class Spread:
    """Online estimate of how far draft and target disagree; one per pair of models, shared by its requests."""

    GRID = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4])
    START = 0.7
    """A draft of about 70 % acceptance; the first twenty tokens or so move it."""
    FORGET = 0.995
    """Weight of all former tokens against the newest one: a memory of about 200."""

    def __init__(self, fixed: float | None = None) -> None:
        """`fixed`: a constant spread, without estimation."""
        self._fixed = fixed
        self._loss: Floats = 4 * np.log(self.GRID / self.START) ** 2

    @property
    def value(self) -> float:
        """The spread under which the target's choices so far were most probable, in logits."""
        return self._fixed or float(self.GRID[int(np.argmin(self._loss))])

    def observe(self, scores: Floats, chosen: int | None) -> None:
        """The target chose the token at index `chosen` of these scores (in logits), or one outside (None).

        Ignored if the best score is not a finite number, which would make the sums useless. (Removed tokens score
        -inf, which is harmless.)
        """
        best = scores.max()  # not a number if any score is none
        if not math.isfinite(best):
            return

        self._loss *= self.FORGET
        if chosen is None:
            self._loss += _OUTSIDE_NATS
            return

        scaled = (scores - best) / self.GRID[:, None]
        price = np.log(np.exp(scaled).sum(axis=1)) - scaled[:, chosen]
        self._loss += np.minimum(price, _OUTSIDE_NATS)


class Ranker:
    """One request's ranking at a worker: callable as `drafter.Rank`, `ranker(logits, path, width)`.

    Without a seed (the operator does not share it) it ranks by the processed distribution alone.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int] = (),
        *,
        spread: Spread | None = None,
        resolved: bool = False,
    ) -> None:
        """`resolved`: report the entropy that remains given the noise, not that of the processed distribution; it
        predicts rejections better, and is far lower where the draft is good."""
        self.sampling = sampling
        self.resolved = resolved
        self.spread = spread or Spread()

        # The filters and the temperature serve to find the distribution; a greedy request is ranked by all its logits.
        self._processor = Processor(sampling)
        self._history: History | None = None
        if self._processor.has_penalties:
            self._history = History(prompt)
        self._length = len(prompt)
        self._recent: dict[tuple[int, ...], tuple[Tokens, Floats]] = {}

    def __call__(self, logits: NDArray[np.float32], path: Sequence[int], width: int) -> Proposal:
        """The best `width` tokens after `path` (below the committed ones), from raw `logits`, shape [vocab_size].

        Costs: nats of -log P(the target takes this token | noise). Entropy: nats, see `resolved`.
        """
        scores: NDArray[np.floating] = logits
        if self._processor.greedy and self._processor.keeps_argmax:
            scores = finite(logits)
            best = largest(scores, max(width, _KEPT))
            tokens = best
            processed = scores
        else:
            candidates = self._candidates(logits, path)
            tokens, scores = self._scores(candidates, path, width)
            best = largest(scores, max(width, _KEPT))
            tokens = tokens[best]
            processed = candidates.logits

        best_scores = scores[best].astype(np.float64)
        self._recent[tuple(path)] = tokens, best_scores
        top = float(best_scores[0])
        log_total, left = _softmax(scores, top, self._scale)
        if not self.resolved:
            left = entropy(processed.astype(np.float64, copy=False))
        costs = log_total + (top - best_scores[:width]) / self._scale
        return Proposal(tokens[:width].tolist(), np.minimum(costs, MAX_COST / 1000).tolist(), left)

    def committed(self, tokens: Sequence[int], *, answer: bool = True, chosen: bool = True) -> None:
        """Extends the committed prefix: updates the spread from the rows along it and drops the others.

        `answer` is False for the rest of a long prompt, whose tokens count for the repetition penalty only. `chosen`:
        by the target; from other tokens nothing is learnt.
        """
        path = tuple(tokens)
        if self._recent and chosen and (self._noisy or self._processor.greedy):
            self._learn(path)

        below = {known: row for known, row in self._recent.items() if known[: len(path)] == path}
        self._recent = {known[len(path) :]: row for known, row in below.items()}
        self._length += len(path)
        if self._history is not None:
            self._history.extend(path, answer=answer)

    def _learn(self, path: Sequence[int]) -> None:
        """Updates the spread from the rows along a path that the target chose."""
        for depth, token in enumerate(path):
            row = self._recent.get(tuple(path[:depth]))
            if row is None:
                continue

            tokens, scores = row
            self.spread.observe(scores, index_of(tokens.tolist(), token))

    @property
    def _noisy(self) -> bool:
        return self.sampling.seed is not None and not self._processor.greedy

    @property
    def _scale(self) -> float:
        """What scores in logits are divided by: the temperature if the noise is unknown and a fresh draw decides."""
        if self._noisy or self._processor.greedy:
            return self.spread.value
        return self.sampling.temperature

    def _candidates(self, logits: NDArray[np.float32], path: Sequence[int]) -> Candidates:
        if self._processor.greedy:
            return Candidates(None, self._processor.adjusted(finite(logits), self._history, path))
        return self._processor.candidates(logits, self._history, path)

    def _scores(self, candidates: Candidates, path: Sequence[int], width: int) -> tuple[Tokens, Floats]:
        """Tokens and their scores in logits, with the noise if it is known; the best `width` are surely there."""
        if self._processor.greedy:
            return candidates.numbers, candidates.logits
        if self.sampling.seed is None:
            return candidates.numbers, candidates.logits * self.sampling.temperature

        tokens, scores = self.noisy_scores(candidates, self.sampling.seed, path, width)
        return tokens, scores * self.sampling.temperature

    def noisy_scores(
        self,
        candidates: Candidates,
        seed: int,
        path: Sequence[int],
        width: int,
    ) -> tuple[Tokens, Floats]:
        """Tokens and their scores in nats with the noise; all if those within reach are fewer than `width`."""
        position = self._length + len(path)
        reach = min(max(_REACH * self._scale / self.sampling.temperature, 4.0), 30.0)
        tokens, scores = shortlist(candidates.logits, seed, position, candidates.tokens, reach)
        if np.count_nonzero(scores >= scores.max() - reach) < width:
            return shortlist(candidates.logits, seed, position, candidates.tokens, _EVERYTHING_NATS)
        return tokens, scores


def _softmax(scores: NDArray[np.floating], top: float, scale: float) -> tuple[float, float]:
    """Logarithm of sum(exp((scores - top) / scale)), and the entropy (nats) of that distribution.

    In float32 over a whole vocabulary: a step ranks every leaf, and in float64 the ranking of 16 leaves over 128,256
    tokens took longer than a small draft model does.
    """
    kind: type[np.floating] = np.float64
    if len(scores) > _SMALL:
        kind = np.float32

    with np.errstate(over="ignore"):  # logits further apart than float32 reaches: -inf, and then _FAINT
        shifted = (scores - scores.dtype.type(top)).astype(kind, copy=False)
        np.multiply(shifted, kind(1 / scale), out=shifted)
    np.maximum(shifted, kind(-_FAINT), out=shifted)  # 0 times -inf is not a number

    weights = np.exp(shifted)
    total = float(weights.sum())
    log_total = math.log(total)
    np.multiply(weights, shifted, out=weights)  # no dot product: see processing.entropy
    return log_total, max(log_total - float(weights.sum()) / total, 0.0)
