"""Small numeric helpers of the pure core."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping


def interpolate(points: Mapping[int, float], x: int) -> float:
    """Piecewise linear through `points`, level beyond both ends. At least one point is needed."""
    known = points.get(x)
    if known is not None:
        return known
    xs = sorted(points)
    i = bisect_left(xs, x)
    if i == 0 or i == len(xs):
        return points[xs[0 if i == 0 else -1]]
    low, high = xs[i - 1], xs[i]
    return points[low] + (points[high] - points[low]) * (x - low) / (high - low)
