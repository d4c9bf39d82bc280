"""What is read from logits in numpy, for any engine that has them in the machine's own memory."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

MIN_LOGIT = -200.0
"""Lower bound of logits relative to the best one, in nats; minus infinity would make 0 · inf in the entropy."""


def argmax_on_host(scores: NDArray[np.float32]) -> list[int]:
    """The first of the largest scores of each row, `scores`: [n, vocab_size]."""
    return [int(row.argmax()) for row in scores]


def entropy_on_host(scores: NDArray[np.float32]) -> float:
    """Nats of the distribution with these logits, [vocab_size]."""
    below = np.maximum(scores - scores.max(), MIN_LOGIT)
    weights = np.exp(below)
    total = float(weights.sum())
    # H = ln Z - E[l], with l the logits below their maximum.
    return math.log(total) - float(np.einsum("i,i", weights, below)) / total
