"""Token processes: what the target says at every position, and what the draft says after any prefix.

A prefix is named by a state: 0 and up is "on the target's own path, up to this position", negative is "off it, by this
route".

By default the workers and the gateway's own draft are one model: all ask one process and get the same proposals. A
worker whose draft is another model, or whose draft is wrong, has a process of its own with the same targets
(`world.run`, `drafts`), so that what one draft finds says nothing of what another one finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.core.verify.shared_noise import Rows
from edgespec.core.drafting.algorithm2 import Proposal

OFF_PATH = 4096
"""Different proposals that off-path prefixes draw from."""
LOOKAHEAD = 96
"""Positions behind the answer's end at which a draft may still ask."""


class TokenProcess(Protocol):
    """One answer, as target and draft see it."""

    targets: Sequence[int]
    """The target's token at every position; position 0 is the prompt's last token."""
    target_entropies: Sequence[float]
    """Entropy (nats) of the target's distribution for that token."""
    off_path: Sequence[Proposal]

    def on_path(self, position: int) -> Proposal:
        """What the draft says after the target's tokens up to this position."""


def draft(process: TokenProcess, state: int) -> Proposal:
    """What the draft says after this prefix."""
    if state >= 0:
        return process.on_path(state)
    return process.off_path[-state % len(process.off_path)]


def child(process: TokenProcess, state: int, token: int) -> int:
    if state >= 0 and process.targets[state + 1] == token:
        return state + 1
    return -1 - (hash((state, token)) & 0xFFFFFFFFFFFF)  # integers hash alike in every Python process


class ProcessVerification:
    """The process's own tokens as the target's choices (`Verification`)."""

    by_match = True

    def __init__(self, process: TokenProcess) -> None:
        self._process = process
        self._position = 0

    def at(self, flat: FlatTree, rows: Rows) -> Callable[[int], int]:
        """The target's token after a row."""
        targets = self._process.targets
        position = self._position
        return lambda row: targets[position + flat.depths[row] + 1]

    def rank(self, logits: object, path: Sequence[int], width: int) -> Proposal:
        raise NotImplementedError("a token process has no logits")

    def committed(self, tokens: Sequence[int]) -> None:
        self._position += len(tokens)


class ProcessRows:
    """The target's result for one tree below a position of the process."""

    def __init__(self, process: TokenProcess, position: int, flat: FlatTree) -> None:
        self._process = process
        self._position = position
        self._flat = flat

    @property
    def argmax(self) -> Sequence[int]:
        """The target's token after each row that lies on its path."""
        return [self._process.targets[self._position + depth + 1] for depth in self._flat.depths]

    def entropy(self, row: int) -> float:
        """Of the target's distribution after a row on its path, in nats."""
        return self._process.target_entropies[self._position + self._flat.depths[row] + 1]

    def logits(self, row: int) -> NDArray[np.float32]:
        raise NotImplementedError("a token process has no logits")
