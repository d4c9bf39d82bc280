"""How often records give the prompt away, and what the even form costs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.sidechannel.forest import Features, Forest
from tools.sidechannel.tap import Record

FIRST = 32
"""Records of a completion that the classifier sees one by one: later ones say less, the more the texts differ."""
SIZES = 64
"""Bytes above the smallest record that are counted one by one."""
VIEWS = ("sizes", "times", "both")
Row = dict[str, Any]


def features(observed: Sequence[Sequence[Record]], view: str = "both") -> Features:
    """Of each completion. Sizes: the first ones, how many of each, their number and sum. Times: first gaps, totals."""
    found: list[NDArray[np.float64]] = []
    for records in observed:
        times, sizes = np.array(records, dtype=float).T
        each: NDArray[Any] = np.bincount(np.minimum(sizes - sizes.min(), SIZES).astype(int), minlength=SIZES + 1)
        by_size = [_first(sizes), each, np.array([len(sizes), sizes.sum()])]
        by_time = [_first(np.diff(times)), np.array([len(times), times[0], times[-1]])]
        chosen = {"sizes": by_size, "times": by_time, "both": by_size + by_time}[view]
        found.append(np.concatenate(chosen))
    return np.array(found)


def _first(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.pad(values[:FIRST], (0, max(0, FIRST - len(values))), constant_values=-1.0)


def hits(rows: Sequence[Row], trees: int = 100) -> tuple[int, int]:
    """Prompts that the best of three views finds, and completions.

    Each seed's completions are classified by a forest that was trained on those of the other seeds.
    """
    prompts, seeds = (np.array([row[name] for row in rows]) for name in ("prompt", "seed"))
    most = 0
    for view in VIEWS:
        x, found = features([row["records"] for row in rows], view), 0
        for seed in np.unique(seeds):
            held = seeds == seed
            found += int((Forest(x[~held], prompts[~held], trees).predict(x[held]) == prompts[held]).sum())
        most = max(most, found)
    return most, len(rows)


def interval(found: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's confidence interval of a share, by default 95 %."""
    share, spread = found / of, z * z / of
    middle, half = share + spread / 2, z * math.sqrt(share * (1 - share) / of + spread / (4 * of))
    return (middle - half) / (1 + spread), (middle + half) / (1 + spread)


def median_ratio(pairs: Iterable[tuple[float, float]]) -> float:
    """Median of second to first."""
    return statistics.median(after / before for before, after in pairs)
