"""Log-probabilities of a row of the target: of the token that was chosen, and of the most probable ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.core.sampling.logits import finite

MIN_LOGPROB = -9999.0
"""OpenAI's value for "very unlikely". JSON has no infinity, which a removed token's would be."""


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Natural log-probabilities of one row."""

    logprob: float
    """That of the token which was chosen."""
    top: tuple[tuple[int, float], ...] = ()
    """The most probable tokens with theirs, best first; of equals the lower token first."""


class LogprobReader:
    """The `RowReader` of a request, for the `top` most probable tokens of each row."""

    def __init__(self, top: int) -> None:
        self.top = top

    def read(self, logits: NDArray[np.floating], token: int) -> RowLogprobs:
        """Infinite logits count as in `Processor.candidates`: an infinite one would leave no probability to any other.

        Computed in float64, without a dot product and without sorting all: np.exp and the sum are one pass each.
        """
        x = finite(logits).astype(np.float64)
        x -= x.max()
        x -= np.log(np.exp(x).sum())
        np.maximum(x, MIN_LOGPROB, out=x)

        best = _best(x, min(self.top, len(x)))
        return RowLogprobs(float(x[token]), tuple((int(i), float(x[i])) for i in best))

    def read_best(self, logprob: float, best: Iterable[tuple[int, float]]) -> RowLogprobs:
        """The same for an engine in another process (edgespec-vllm), which sends no rows.

        `logprob`: of the token that was chosen; `best`: tokens with theirs, among them the `top` most probable ones.
        """
        ordered = sorted(best, key=lambda pair: (-pair[1], pair[0]))
        return RowLogprobs(logprob, tuple(ordered[: self.top]))


def _best(x: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The indices of the largest values, of equals the lower first."""
    if count == 0:
        return np.empty(0, np.int64)

    least = np.partition(x, len(x) - count)[len(x) - count]
    found = np.flatnonzero(x >= least)
    return found[np.lexsort((found, -x[found]))][:count]
