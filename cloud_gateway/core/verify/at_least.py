"""A completion's least length: until it is reached, end tokens have no probability, for the target and for drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.verify.flatten import FlatTree
from cloud_gateway.core.verify.shared_noise import Rows
from cloud_gateway.core.verify.verification import Verification
from edgespec.core.drafting.algorithm2 import Proposal


def at_least(tokens: int, ends: AbstractSet[int], chosen: Verification) -> Verification:
    """The method `chosen`, without `ends` among the first `tokens` tokens of the completion."""
    return AtLeast(tokens, ends, chosen) if tokens else chosen


class AtLeast:
    """A method of verification over logits in which the end tokens are removed, as long as the completion is short.

    Removed by position alone, so that the completion does not depend on what was drafted.
    """

    def __init__(self, tokens: int, ends: AbstractSet[int], chosen: Verification) -> None:
        self.by_match = chosen.by_match
        self._left, self._ends, self._chosen = tokens, ends, chosen

    def at(self, flat: FlatTree, rows: Rows) -> Callable[[int], int]:
        """The choices of `Verification.at`."""
        return self._chosen.at(flat, _WithoutEnds(rows, flat, self._left, self._ends) if self._left > 0 else rows)

    def rank(self, logits: NDArray[np.float32], path: Sequence[int], width: int) -> Proposal:
        """The candidates of `Verification.rank`."""
        return self._chosen.rank(_without(logits, self._ends) if len(path) < self._left else logits, path, width)

    def committed(self, tokens: Sequence[int]) -> None:
        self._left -= len(tokens)
        self._chosen.committed(tokens)


class _WithoutEnds:
    """Rows of one tree, of which those of fewer than `left` tokens after the committed ones have no end token."""

    def __init__(self, rows: Rows, flat: FlatTree, left: int, ends: AbstractSet[int]) -> None:
        self._rows, self._depths, self._left, self._ends = rows, flat.depths, left, ends

    @property
    def argmax(self) -> Sequence[int]:
        """The most probable token of each row; logits are read only of rows at whose top an end token was."""
        found = self._rows.argmax
        return [int(self.logits(row).argmax()) if self._short(row, top) else top for row, top in enumerate(found)]

    def logits(self, row: int) -> NDArray[np.float32]:
        """Shape [vocab_size]."""
        raw = self._rows.logits(row)
        return _without(raw, self._ends) if self._depths[row] < self._left else raw

    def _short(self, row: int, top: int) -> bool:
        return top in self._ends and self._depths[row] < self._left


def _without(logits: NDArray[np.float32], ends: AbstractSet[int]) -> NDArray[np.float32]:
    found = logits.copy()
    found[[token for token in ends if token < len(found)]] = -np.inf
    return found
