"""Log-probabilities for the client: the target's own, for drafted tokens too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.verify.accept import Walk
from cloud_gateway.core.verify.interface import TokenLogprob
from edgespec.core.sampling.logits import finite

MIN_LOGPROB = -9999.0
"""OpenAI's value for "very unlikely". JSON has no infinity, which a removed token's would be."""


def token_logprob(logits: NDArray[np.floating], token: int, top: int) -> TokenLogprob:
    """Of `token` and of the `top` most probable ones, in nats; `logits` raw, shape [vocab_size], in float64 here.

    Infinite logits count as in `Processor.candidates`: an infinite one would leave no probability to any other.
    """
    x = finite(logits).astype(np.float64)
    x -= x.max()
    # No dot product and no sorting of all: np.exp and the sum are one pass each.
    x -= np.log(np.exp(x).sum())
    np.maximum(x, MIN_LOGPROB, out=x)
    best = _best(x, min(top, len(x)))
    return TokenLogprob(float(x[token]), tuple((int(i), float(x[i])) for i in best))


def _best(x: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The indices of the largest values, of equals the lower first."""
    if count == 0:
        return np.empty(0, np.int64)
    least = np.partition(x, len(x) - count)[len(x) - count]
    found = np.flatnonzero(x >= least)
    return found[np.lexsort((found, -x[found]))][:count]


def walk_logprobs(logits: Callable[[int], NDArray[np.floating]], taken: Walk, top: int) -> list[TokenLogprob]:
    """One for each token of a walk; `logits` fetches the row after which it was chosen."""
    return [token_logprob(logits(row), token, top) for row, token in zip(taken.rows, taken.tokens, strict=True)]
