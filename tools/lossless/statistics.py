"""Pearson's chi-square test and Holm's correction, without a statistics library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_EXPECTED = 8.0
"""Cells expected less often than this are thrown together, so that the statistic follows its distribution."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How well observed counts fit a distribution. `p`: probability of a worse fit by chance."""

    cells: int
    statistic: float
    p: float


def chi_square(observed: NDArray[np.int64], probabilities: NDArray[np.float64]) -> Fit:
    """Tests counts per cell against exact probabilities (which sum to 1).

    A count where the probability is 0 gives p = 0.
    """
    expected = probabilities * observed.sum()
    if observed[probabilities == 0].any():
        return Fit(len(observed), math.inf, 0.0)

    order = np.argsort(expected)
    observed = observed[order]
    expected = expected[order]

    # The smallest cells, up to the first that brings their sum over the limit, become one.
    pooled = int(np.searchsorted(expected, MIN_EXPECTED))
    if pooled:
        while pooled < len(expected) and expected[:pooled].sum() < MIN_EXPECTED:
            pooled += 1
        observed = np.append(observed[:pooled].sum(), observed[pooled:])
        expected = np.append(expected[:pooled].sum(), expected[pooled:])
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return Fit(len(expected), statistic, chi_square_tail(statistic, len(expected) - 1))


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(chi-square with `freedom` degrees > statistic): the regularised upper incomplete gamma function Q(a, x).

    By its power series below the mean and by its continued fraction (Lentz) above: Abramowitz and Stegun 6.5.29 and
    6.5.31.
    """
    if freedom < 1 or statistic <= 0:
        return 1.0

    a = freedom / 2
    x = statistic / 2
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while term > total * 1e-16:
            n += 1
            term *= x / n
            total += term
        return max(1 - front * total, 0.0)

    b = x + 1 - a
    c = math.inf
    d = 1 / b
    fraction = d
    for i in range(1, 100_000):
        step = i * (a - i)
        b += 2
        d = 1 / (b + step * d)
        c = b + step / c
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break

    return front * fraction


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-Bonferroni: p-values corrected for the number of tests, in the order given.

    That any of them falls below alpha by chance has at most probability alpha, however the tests depend on each other.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [0.0] * len(p_values)
    running = 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, p_values[i] * (len(p_values) - rank)))
        corrected[i] = running

    return corrected
