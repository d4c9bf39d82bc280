"""A constraint that is simple enough to see what it does."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tools.doubles.model import VOCAB


class FiveAfterFour:
    """Forces the token 5 after every 4."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._last = prompt[-1]

    def __call__(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        return np.arange(VOCAB) == 5 if [self._last, *path][-1] == 4 else None

    def allowed(self, path: Sequence[int]) -> int:
        steps = itertools.pairwise([self._last, *path])
        return next((i for i, (last, token) in enumerate(steps) if last == 4 and token != 5), len(path))

    def forced(self, path: Sequence[int]) -> Sequence[int]:
        return [5] if [self._last, *path][-1] == 4 else []

    def committed(self, tokens: Sequence[int]) -> None:
        self._last = tokens[-1]
