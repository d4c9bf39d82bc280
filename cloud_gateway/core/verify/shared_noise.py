"""The target's choice at one row of a verified tree: greedy, or Gumbel-max with the shared noise (docs/numerics.md).

    chooser = Chooser(sampling, prompt)
    walk(flat, chooser.at(flat, verified))      one choice per row passed
    chooser.committed(tokens)                   what the walk emitted

The choice depends on the seed, the tokens before it and the target's logits: not on which candidates were verified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.core.verify.interface import Constraint
from edgespec.core.protocol.messages import Sampling
from edgespec.core.sampling.gumbel import noisy_argmax
from edgespec.core.sampling.logits import Candidates, History, Processor


class Rows(Protocol):
    """The part of `target.Verified` that choosing reads."""

    @property
    def argmax(self) -> Sequence[int]: ...

    def logits(self, row: int) -> NDArray[np.float32]: ...


class Chooser:
    """One answer's choices: its sampling parameters, its seed, and the counts that the penalties read."""

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        constraint: Constraint | None = None,
    ) -> None:
        """Raises ValueError when the temperature asks for noise and there is no seed."""
        self.processor = Processor(sampling)
        self.constraint = constraint
        if sampling.seed is None and not self.processor.greedy:
            raise ValueError("sampling at a temperature needs a seed: draw one before")

        self.seed = sampling.seed or 0
        self.length = len(prompt)
        """Tokens of prompt and committed answer, so also the position of the next token."""
        self.history: History | None = None
        """What penalties count; None if there are none."""
        if self.processor.has_penalties:
            self.history = History(prompt)
        self._by_argmax = self.processor.greedy and self.processor.keeps_argmax and constraint is None

    def choose(self, rows: Rows, row: int, path: Sequence[int]) -> int:
        """The token after `row`, `path` being the row's tokens below the committed ones (empty for row 0)."""
        if self._by_argmax:
            return int(rows.argmax[row])

        candidates = self.candidates(rows, row, path)
        if self.processor.greedy and candidates.tokens is not None:
            return int(candidates.tokens[0])

        return noisy_argmax(candidates.logits, self.seed, self.position(path), candidates.tokens)[0]

    def at(self, flat: FlatTree, rows: Rows) -> Callable[[int], int]:
        """`choose` as `accept.walk` wants it, for the rows of one verified tree."""
        if self._by_argmax:  # of which no row's path is needed
            argmax = rows.argmax
            return lambda row: int(argmax[row])
        return lambda row: self.choose(rows, row, path_to(flat, row))

    def committed(self, tokens: Sequence[int]) -> None:
        self.length += len(tokens)
        if self.history is not None:
            self.history.extend(tokens)

    def candidates(self, rows: Rows, row: int, path: Sequence[int]) -> Candidates:
        """The processed distribution after `row`; its `entropy()` is what branching and reports want."""
        allowed = None
        if self.constraint is not None:
            allowed = self.constraint(path)
        return self.processor.candidates(rows.logits(row), self.history, path, allowed)

    def position(self, path: Sequence[int]) -> int:
        """Index in prompt + answer of the token that follows `path`."""
        return self.length + len(path)


def path_to(flat: FlatTree, row: int) -> list[int]:
    """The candidate tokens from below row 0 down to and including `row`; empty for row 0."""
    path: list[int] = []
    while row > 0:
        path.append(flat.tokens[row])
        row = flat.parents[row]
    path.reverse()
    return path
