"""The worker's guesses at the target's next token, ranked with the target's own noise (design section 6).

The target takes argmax_v(z(v) / T + g(v)) of its adjusted logits z. The draft knows T and g and has logits z' near z.
If the errors z - z' were independent Gumbel noise of scale s, the target would take v with probability

    softmax_v( (z'(v) + T g(v)) / s )

which is what this module ranks and prices by. The *spread* s, in logits, says how far draft and target disagree; it is
a property of the pair and the same at every temperature, greedy included (T = 0), as docs/numerics.md shows on data. It
is learned from what the target chose. With s = 1 and T = 0 a cost is WANSpec's -log q.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.core.children import largest
from edgespec.core.drafting import Proposal
from edgespec.core.messages import Sampling
from edgespec.core.processing import Candidates, History, Processor, entropy, kth_largest
from edgespec.core.sampling import every_token, shortlist

Floats = NDArray[np.float64]
Tokens = NDArray[np.int64]

_REACH = 16.0
"""Tokens whose score is further below the best one, in spreads, get no share of the probability."""
_EVERYTHING_NATS = 1e6
_FAINT = np.float32(80.0)
"""exp(-80) adds nothing to a sum of float32."""
_KEPT = 16
"""Best tokens of a row that are remembered to learn the spread from."""
_OUTSIDE_NATS = 7.0
"""Price, while learning, of a choice that was not among them."""


class Spread:
    """Learns how far draft and target disagree; one per pair of models, shared by its requests."""

    GRID = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4])
    START = 0.7
    """A draft of about 70 % acceptance; the first twenty tokens or so move it."""
    FORGET = 0.995
    """Weight of all former tokens against the newest one: a memory of about 200."""

    def __init__(self, fixed: float | None = None) -> None:
        """`fixed` switches learning off."""
        self._fixed = fixed
        self._loss: Floats = 4 * np.log(self.GRID / self.START) ** 2

    @property
    def value(self) -> float:
        """The spread under which the target's choices so far were most probable, in logits."""
        return self._fixed or float(self.GRID[int(np.argmin(self._loss))])

    def observe(self, scores: Floats, chosen: int | None) -> None:
        """The target chose the token at index `chosen` of these scores (in logits), or one outside (None)."""
        scaled = (scores - scores.max()) / self.GRID[:, None]
        price = np.log(np.exp(scaled).sum(axis=1))
        if chosen is not None:
            price -= scaled[:, chosen]
        self._loss *= self.FORGET
        self._loss += np.minimum(price, _OUTSIDE_NATS) if chosen is not None else _OUTSIDE_NATS


class Ranker:
    """One request's ranking at a worker: callable as `drafter.Rank`, `ranker(logits, path, width)`.

    Without a seed (the operator does not share it) it ranks by the processed distribution alone.
    """

    def __init__(
        self, sampling: Sampling, prompt: Sequence[int] = (), *, spread: Spread | None = None, resolved: bool = False
    ) -> None:
        """`resolved`: report the entropy that is left once the noise is known, not that of the processed distribution;
        it foretells wrong guesses better, and is far lower where the draft is good."""
        self.sampling, self.resolved = sampling, resolved
        self.spread = spread or Spread()
        # The filters and the temperature serve to find the distribution; a greedy request is ranked by all its logits.
        self._processor = Processor(sampling)
        self._history = History(prompt) if self._processor.has_penalties else None
        self._length = len(prompt)
        self._recent: dict[tuple[int, ...], tuple[Tokens, Floats]] = {}

    def __call__(self, logits: NDArray[np.float32], path: Sequence[int], width: int) -> Proposal:
        """The best `width` guesses after `path` (tokens below the committed ones), from raw `logits`, [vocab_size].

        Costs: nats of -log P(the target takes this token | noise). Entropy: nats, see `resolved`.
        """
        if self._processor.greedy and self._processor.keeps_argmax:
            return self._greedy(logits, path, width)
        found = self._candidates(logits, path)
        tokens, scores = self._scores(found, self._length + len(path), width)
        scale, top = self._scale, float(scores.max())
        near = scores[scores >= top - _REACH * scale]
        log_total = math.log(float(np.exp((near - top) / scale).sum()))
        best = _largest(scores, max(width, _KEPT))
        self._recent[tuple(path)] = tokens[best], scores[best]
        best = best[:width]
        costs = log_total + (top - scores[best]) / scale
        left = entropy(near / scale) if self.resolved else found.entropy()
        return Proposal(tokens[best].tolist(), costs.tolist(), left)

    def _greedy(self, logits: NDArray[np.float32], path: Sequence[int], width: int) -> Proposal:
        """The same where nothing is added to the logits: in float32 throughout, which takes a third of the time.

        A step ranks every leaf, so with 16 leaves and a large vocabulary the other way took longer than a small draft
        model does.
        """
        best = largest(logits, max(width, _KEPT))
        self._recent[tuple(path)] = best, logits[best].astype(np.float64)
        shifted = logits - logits[best[0]]
        shifted *= np.float32(1 / self._scale)
        np.maximum(shifted, -_FAINT, out=shifted)  # 0 times -inf is not a number
        weights = np.exp(shifted)
        total = float(weights.sum())
        costs = math.log(total) - shifted[best[:width]].astype(np.float64)
        weights *= shifted
        left = max(math.log(total) - float(weights.sum()) / total, 0.0)
        return Proposal(
            best[:width].tolist(), costs.tolist(), left if self.resolved else entropy(logits.astype(np.float64))
        )

    def committed(self, tokens: Sequence[int], *, answer: bool = True) -> None:
        """The committed prefix grew: learns from the rows along it and forgets those beside it.

        `answer` is False for the rest of a long prompt, whose tokens count for the repetition penalty only.
        """
        path, learning = tuple(tokens), self._noisy or self._processor.greedy
        for depth, token in enumerate(path):
            row = self._recent.get(path[:depth])
            if row is not None and learning:
                where = np.flatnonzero(row[0] == token)
                self.spread.observe(row[1], int(where[0]) if len(where) else None)
        below = {known: row for known, row in self._recent.items() if known[: len(path)] == path}
        self._recent = {known[len(path) :]: row for known, row in below.items()}
        self._length += len(path)
        if self._history is not None:
            self._history.extend(path, answer=answer)

    @property
    def _noisy(self) -> bool:
        return self.sampling.seed is not None and not self._processor.greedy

    @property
    def _scale(self) -> float:
        """What scores in logits are divided by: the temperature where the noise is unknown and a fresh draw decides."""
        return self.spread.value if self._noisy or self._processor.greedy else self.sampling.temperature

    def _candidates(self, logits: NDArray[np.float32], path: Sequence[int]) -> Candidates:
        if self._processor.greedy:
            return Candidates(None, self._processor.adjusted(logits, self._history, path))
        return self._processor.candidates(logits, self._history, path)

    def _scores(self, found: Candidates, position: int, width: int) -> tuple[Tokens, Floats]:
        """Tokens and their scores in logits, with the noise where it is known; the best `width` are surely there."""
        if self._noisy and self.sampling.seed is not None:
            reach = min(max(_REACH * self._scale / self.sampling.temperature, 4.0), 30.0)
            tokens, scores = shortlist(found.logits, self.sampling.seed, position, found.tokens, reach)
            if np.count_nonzero(scores >= scores.max() - reach) < width:
                tokens, scores = shortlist(found.logits, self.sampling.seed, position, found.tokens, _EVERYTHING_NATS)
        else:
            tokens = every_token(len(found.logits)) if found.tokens is None else found.tokens
            scores = found.logits
        return tokens, scores if self._processor.greedy else scores * self.sampling.temperature


def _largest(scores: Floats, count: int) -> Tokens:
    """Indices of the largest scores, best first, equal ones by index."""
    ready = np.flatnonzero(scores >= kth_largest(scores, min(count, len(scores))))
    return ready[np.argsort(-scores[ready], kind="stable")[:count]]
