"""A forest of extremely randomised trees (Geurts et al. 2006), the kind of classifier that the paper attacks with.

dev/decisions/107-stream.md compares it with scikit-learn's on the same records.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Features = NDArray[np.float64]
Labels = NDArray[np.int64]


class Forest:
    """`trees` trees over `features`, shape [samples, features], and `labels` from 0, shape [samples]."""

    def __init__(self, features: Features, labels: Labels, trees: int = 100, seed: int = 1) -> None:
        self._classes = int(labels.max()) + 1
        rng, shares = np.random.default_rng(seed), np.eye(self._classes)[labels]
        self._trees = [_Node(features, shares, rng) for _ in range(trees)]

    def predict(self, features: Features) -> Labels:
        """The most probable label of each row."""
        votes = np.zeros((len(features), self._classes))
        for tree in self._trees:
            tree.vote(features, np.arange(len(features)), votes)
        return votes.argmax(axis=1)


class _Node:
    """A split with two children, or a leaf with the shares of its classes. Grown until every leaf is pure."""

    def __init__(self, x: Features, shares: NDArray[np.float64], rng: np.random.Generator) -> None:
        self.share = shares.mean(axis=0)
        self.children: tuple[_Node, _Node] | None = None
        low, high = x.min(axis=0), x.max(axis=0)
        varied = np.flatnonzero(high > low)
        if self.share.max() == 1 or not len(varied):
            return
        tried = rng.choice(varied, min(len(varied), round(x.shape[1] ** 0.5)), replace=False)
        cuts = rng.uniform(low[tried], high[tried])
        left = x[:, tried] <= cuts
        counts, sizes = left.T @ shares, left.sum(axis=0)
        rest, others = shares.sum(axis=0) - counts, len(x) - sizes
        purity = (counts**2).sum(axis=1) / np.maximum(sizes, 1) + (rest**2).sum(axis=1) / np.maximum(others, 1)
        best = int(purity.argmax())
        if not 0 < sizes[best] < len(x):
            return
        self.feature, self.cut = int(tried[best]), float(cuts[best])
        goes_left = left[:, best]
        self.children = _Node(x[goes_left], shares[goes_left], rng), _Node(x[~goes_left], shares[~goes_left], rng)

    def vote(self, x: Features, rows: NDArray[np.intp], votes: NDArray[np.float64]) -> None:
        """Adds the shares of the leaf of each of these rows."""
        if self.children is None:
            votes[rows] += self.share
            return
        left = x[rows, self.feature] <= self.cut
        self.children[0].vote(x, rows[left], votes)
        self.children[1].vote(x, rows[~left], votes)
