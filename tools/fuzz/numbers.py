"""Numbers that a range lets in, preferably those at which arithmetic goes wrong."""

from __future__ import annotations

import math
import random

from edgespec.core.protocol.ranges import Range

SUBNORMAL = (5e-324, 1e-310, 2.2250738585072014e-308)
EDGES = (0.0, -0.0, *SUBNORMAL, 1e-300, 1e-38, 1e-5, 0.009999, 0.01, 0.5, 1.0, 2.0, 10.0)
"""Greedy begins below 1e-5; the smallest float32 is near 1e-38; the others are bounds and ordinary values."""


def inside(rng: random.Random, bounds: Range, whole: bool = False) -> float:
    """A number of the range: a bound, its neighbour, an edge of the arithmetic, or any."""
    if whole:
        low, high = int(bounds.low), int(bounds.high)
        any_ = rng.choice((low, low + 1, 0, 1, 2, high - 1, high, rng.randint(low, high), rng.randint(low, low + 50)))
        return any_ if any_ in bounds else high
    kind = rng.random()
    if kind < 0.4:
        value = rng.uniform(bounds.low, bounds.high)
    elif kind < 0.7:
        value = rng.choice(EDGES) * rng.choice((1, -1))
    else:
        value = rng.choice((bounds.low, bounds.high))
        value = math.nextafter(value, rng.choice((-math.inf, value, math.inf)))
    return value if value in bounds else bounds.high


def outside(rng: random.Random, bounds: Range, whole: bool = False) -> float:
    """A number that the range refuses, as near to it as there is or far away."""
    if whole:
        return rng.choice((int(bounds.low) - 1, int(bounds.high) + 1, 2**70, -(2**70)))
    below = bounds.low if bounds.above else math.nextafter(bounds.low, -math.inf)
    return rng.choice((below, math.nextafter(bounds.high, math.inf), -1e308, 1e308, 1e18))
