"""The duration of a function relative to a sort at the same time, so that it is comparable on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

VOCAB = 49152


def in_sorts(function: Callable[[], object], repeats: int = 20) -> float:
    """The function's shortest time over the shortest of a stable sort of 49,152 numbers: 3 to 4 ms when idle.

    numpy has no vector code for that one, so it takes about as long on processors with and without AVX-512.
    """
    numbers = np.random.default_rng(0).normal(size=VOCAB)
    times = np.array([(_seconds(function), _seconds(lambda: np.sort(numbers, kind="stable"))) for _ in range(repeats)])
    mine, sort = times.min(axis=0)
    return float(mine / sort)


def _seconds(function: Callable[[], object]) -> float:
    start = time.thread_time()
    function()
    return time.thread_time() - start
