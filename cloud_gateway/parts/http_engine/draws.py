"""The server's draws as rows of a pass, and the method of verification that follows them; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from cloud_gateway.core.verify.accept import NOT_COMPUTED, FlatTree
from cloud_gateway.core.verify.shared_noise import Rows
from cloud_gateway.core.verify.verification import CompletionStart, Method, Verification
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.ranking import Ranker
from edgespec.core.errors import ClientError


@dataclass(frozen=True, slots=True)
class DrawnRows:
    """The result of one pass: the tokens drawn after the rows on the path of the draws. No other row is looked at."""

    draws: Mapping[int, int]
    """Row -> token."""
    rows: int
    vocab_size: int

    @property
    def argmax(self) -> Sequence[int]:
        """The draws, in the place of the most probable tokens."""
        return [self.draws.get(row, NOT_COMPUTED) for row in range(self.rows)]

    def entropy(self, row: int) -> float:
        """Nothing is known of the distribution, and a draw is one token."""
        return 0.0

    def logits(self, row: int) -> NDArray[np.float32]:
        """A distribution that has the drawn token alone, shape [vocab_size]: every method of choosing takes it."""
        logits = np.full(self.vocab_size, -np.inf, np.float32)
        logits[self.draws[row]] = 0.0
        return logits


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """The result of a pass that the server has not computed, and will not: the request ends with the error."""

    error: ClientError

    @property
    def argmax(self) -> Sequence[int]:
        raise self.error

    def entropy(self, row: int) -> float:
        raise self.error

    def logits(self, row: int) -> NDArray[np.float32]:
        raise self.error


class Draws:
    """A `Verification`: the token after a row is the one that the server drew there."""

    by_match = True

    def __init__(self, start: CompletionStart) -> None:
        # The server's noise is its own, so a draft ranks by its distribution alone.
        self._ranker = Ranker(replace(start.sampling, seed=None), start.prompt, spread=start.spread)

    def at(self, flat: FlatTree, rows: Rows) -> Callable[[int], int]:
        return rows.argmax.__getitem__

    def rank(self, logits: NDArray[np.float32], path: Sequence[int], width: int) -> Proposal:
        return self._ranker(logits, path, width)

    def committed(self, tokens: Sequence[int]) -> None:
        self._ranker.committed(tokens)


def _begin(start: CompletionStart) -> Verification:
    return Draws(start)


DRAWS = Method("draws", seeded=False, begin=_begin)
