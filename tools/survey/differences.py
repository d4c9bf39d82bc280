"""Differences between endpoints of different regions, by hour and in total: what moving work could gain.

The paper's observation (WANSpec, section 3) is that queues differ more than networks do, so that at times an endpoint
on another continent answers first. These figures confirm or refute it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tools.survey.analysis import FEW, Floats, Series, hourly, measured, percentile, percentiles

RESAMPLES = 200
MIN_BLOCKS = 6
"""Hours of data below which no interval is given."""
_TIMES = ("ttft_ms", "wait_ms")


def above_minimum(several: Sequence[Series], quantity: str = "wait_ms", q: float = 50) -> Floats:
    """How far each series' percentile lies above the lowest of the same hour, machine and model [series, 24].

    This is what moving work at that hour could gain. NaN where a hour has no other series to compare with.
    """
    figures = np.array([hourly(one, quantity, q)[0] for one in several])
    result = np.full_like(figures, np.nan)
    for row, one in enumerate(several):
        peers = [n for n, other in enumerate(several) if (other.source, other.model) == (one.source, one.model)]
        there = figures[peers]
        enough = (~np.isnan(there)).sum(axis=0) > 1
        least = np.where(enough, np.nanmin(np.where(np.isnan(there), np.inf, there), axis=0), np.nan)
        result[row] = figures[row] - least
    return result


def differences(several: Sequence[Series], seed: int = 0) -> list[dict[str, Any]]:
    """Every ordered pair of series of one machine: the gain of using `other` instead of `home`.

    Differences are home minus other, so above zero the other is faster. Intervals (95 %) are from resampling whole
    hours, since samples of one hour share a queue; they are None with fewer than `MIN_BLOCKS` hours of either.
    """
    drawn = [_resampled(one, seed) for one in several]
    pairs = []
    for n, home in enumerate(several):
        for m, other in enumerate(several):
            if n == m or home.source != other.source:
                continue
            pair: dict[str, Any] = {"source": home.source, "home": home.label, "other": other.label}
            pair["same_model"] = home.model == other.model
            for quantity, q in ((name, q) for name in ("ttft_ms", "wait_ms") for q in (50, 95)):
                key = f"{quantity.removesuffix('_ms')}_p{q}_ms"
                pair[key] = _minus(percentile(home.values[quantity], q), percentile(other.values[quantity], q))
                pair[f"{key}_interval"] = _interval(drawn[n].get((quantity, q)), drawn[m].get((quantity, q)))
            pair |= _hours_faster(home, other)
            pair["other_connect_p50_ms"] = percentile(other.values["connect_ms"], 50)
            pairs.append(pair)
    return pairs


def _hours_faster(home: Series, other: Series) -> dict[str, int]:
    """In how many hours of the day, of those with enough samples, the other's p95 is lower."""
    (mine, my_count), (theirs, their_count) = (hourly(one, "ttft_ms", 95) for one in (home, other))
    enough = (my_count >= FEW["p95"]) & (their_count >= FEW["p95"])
    return {"hours_compared": int(enough.sum()), "hours_other_faster_p95": int((theirs < mine)[enough].sum())}


def _resampled(one: Series, seed: int) -> dict[tuple[str, int], Floats]:
    """Percentiles of `RESAMPLES` draws of whole hours, by quantity and percentile; nothing with too few of them."""
    blocks = np.unique(one.at // 3600, return_inverse=True)[1]
    if blocks[-1] + 1 < MIN_BLOCKS:
        return {}
    parts = {name: [measured(one.values[name][blocks == block]) for block in range(blocks[-1] + 1)] for name in _TIMES}
    random = np.random.default_rng(seed)
    draws = random.integers(0, blocks[-1] + 1, size=(RESAMPLES, blocks[-1] + 1))
    result = {}
    for name, pieces in parts.items():
        drawn = [np.concatenate([pieces[block] for block in draw]) for draw in draws]
        for q in (50, 95):
            result[name, q] = percentiles(drawn, q)
    return result


def _interval(mine: Floats | None, theirs: Floats | None) -> list[float] | None:
    if mine is None or theirs is None:
        return None
    gain = measured(mine - theirs)
    return [round(float(edge), 3) for edge in np.percentile(gain, (2.5, 97.5))] if gain.size else None


def _minus(mine: float | None, theirs: float | None) -> float | None:
    return None if mine is None or theirs is None else round(mine - theirs, 3)
