"""A token process in the place of the target model: its choices, and its rows of a verified tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.verify.flatten import FlatTree
from cloud_gateway.core.verify.shared_noise import Rows
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.lab.sim.process import TokenProcess


class ProcessVerification:
    """The process's own tokens as the target's choices (`Verification`)."""

    by_match = True

    def __init__(self, process: TokenProcess) -> None:
        self._process, self._position = process, 0

    def at(self, flat: FlatTree, rows: Rows) -> Callable[[int], int]:
        """The target's token after a row."""
        targets, position = self._process.targets, self._position
        return lambda row: targets[position + flat.depths[row] + 1]

    def rank(self, logits: object, path: Sequence[int], width: int) -> Proposal:
        raise NotImplementedError("a token process has no logits")

    def committed(self, tokens: Sequence[int]) -> None:
        """The answer has grown by these tokens."""
        self._position += len(tokens)


class ProcessRows:
    """The target's result for one tree below a position of the process."""

    def __init__(self, process: TokenProcess, position: int, flat: FlatTree) -> None:
        self._process, self._position, self._flat = process, position, flat

    @property
    def argmax(self) -> Sequence[int]:
        """The target's token after each row that lies on its path."""
        return [self._process.targets[self._position + depth + 1] for depth in self._flat.depths]

    def entropy(self, row: int) -> float:
        """Of the target's distribution after a row on its path, in nats."""
        return self._process.target_entropies[self._position + self._flat.depths[row] + 1]

    def logits(self, row: int) -> NDArray[np.float32]:
        raise NotImplementedError("a token process has no logits")
