"""A constraint that is simple enough to see what it does."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.verify.interface import Constraint
from tools.doubles.model import VOCAB


class ForcesFive(Constraint):
    """Forces the token 5 after each of some tokens."""

    def __init__(self, prompt: Sequence[int], after: Collection[int] = (4,)) -> None:
        self._last = prompt[-1]
        self._after = after

    def __call__(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        return np.arange(VOCAB) == 5 if [self._last, *path][-1] in self._after else None

    def allowed(self, path: Sequence[int]) -> int:
        steps = itertools.pairwise([self._last, *path])
        return next((i for i, (last, token) in enumerate(steps) if last in self._after and token != 5), len(path))

    def forced(self, path: Sequence[int]) -> Sequence[int]:
        return [5] if [self._last, *path][-1] in self._after else []

    def committed(self, tokens: Sequence[int]) -> None:
        self._last = tokens[-1]
