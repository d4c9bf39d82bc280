"""Logits as a request's sampling parameters leave them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.core.protocol.messages import Sampling
from edgespec.core.sampling.logits import Candidates, Floats, History, Mask, Processor


def process(
    logits: NDArray[np.floating],
    sampling: Sampling,
    history: History | None = None,
    path: Sequence[int] = (),
    allowed: Mask | None = None,
) -> Floats:
    """`Processor.candidates` in one call, as logits of the whole vocabulary with -inf for removed tokens."""
    return Processor(sampling).candidates(logits, history, path, allowed).dense(len(logits))


def probabilities(candidates: Candidates, vocab_size: int) -> Floats:
    """The distribution over the whole vocabulary; shape [vocab_size], sums to 1."""
    weights: Floats = np.exp(candidates.dense(vocab_size) - candidates.logits.max())
    weights /= weights.sum()
    return weights
