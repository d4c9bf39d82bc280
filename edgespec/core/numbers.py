"""Small numeric helpers of the pure core."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence


def interpolate(points: Mapping[int, float], x: int) -> float:
    """Piecewise linear through `points`, level beyond both ends. At least one point is needed."""
    if x in points:
        return points[x]
    return between(points, sorted(points), x)


def between(points: Mapping[int, float], xs: Sequence[int], x: int) -> float:
    """The same if `points` has no `x`; `xs`: those that it has, in rising order."""
    i = bisect_left(xs, x)
    if i == 0:
        return points[xs[0]]
    if i == len(xs):
        return points[xs[-1]]

    low = xs[i - 1]
    high = xs[i]
    return points[low] + (points[high] - points[low]) * (x - low) / (high - low)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common beginning; both of one type, so that slices compare at C speed."""
    low = 0
    high = min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1

    return low


def index_of(items: Sequence[int], item: int) -> int | None:
    """The first place of an item; None if it is not there."""
    if item in items:
        return items.index(item)
    return None
