"""Table and plot of divergences (`python -m tools.lossless divergence`), from its JSON figures alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

EDGE = 1.0
"""Nats: gaps from here on share one bar; those of sampled tokens are not known more precisely."""
BARS = 16
"""Below it."""


def figures(shape: str, gaps: Sequence[Sequence[float]], found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row of the table: `gaps` are those of all positions, answer by answer, `found` the divergences."""
    every, there = sorted(gap for answer in gaps for gap in answer), sorted(one["plain_gap"] for one in found)
    low, high = poisson_interval(len(found))
    return {
        "shape": shape,
        "tokens": len(every),
        "divergences": len(found),
        "per_10000": round(len(found) / len(every) * 1e4, 1),
        "interval": [round(bound / len(every) * 1e4, 1) for bound in (low, high)],
        "median_gap": round(there[len(there) // 2], 4) if there else None,
        "largest_gap": round(there[-1], 4) if there else None,
        "positions_below_largest": sum(gap <= there[-1] for gap in every) if there else 0,
        "median_gap_everywhere": round(every[len(every) // 2], 4),
        "found": list(found),
    }


def poisson_interval(count: int) -> tuple[float, float]:
    """95 % confidence limits of a Poisson mean of which `count` was seen (Garwood 1936), by bisection."""

    def below(mean: float, most: int) -> float:
        return math.fsum(math.exp(i * math.log(mean) - mean - math.lgamma(i + 1)) for i in range(most + 1))

    def solve(goal: float, most: int) -> float:
        low, high = 1e-9, 10.0 + 3 * (most + 1)
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if below(middle, most) > goal else (low, middle)
        return high

    return (solve(0.975, count - 1) if count else 0.0), solve(0.025, count)


def table(report: dict[str, Any]) -> Table:
    """The arms, and how close the best two scores were where they differ."""
    made = Table(title="Divergences of speculation from plain decoding")
    names = ("way", "T", "shape", "tokens", "divergences", "per 10,000 (95 %)", "median gap", "largest gap")
    for column in names:
        made.add_column(column, justify="left" if column in ("way", "shape") else "right")
    for arm in report["arms"]:
        low, high = arm["interval"]
        gaps = ("" if arm[key] is None else f"{arm[key]:.3f}" for key in ("median_gap", "largest_gap"))
        rate = f"{arm['per_10000']:.0f} ({low:.0f} to {high:.0f})"
        counts = str(arm["tokens"]), str(arm["divergences"])
        made.add_row(arm["way"], f"{arm['temperature']:g}", arm["shape"], *counts, rate, *gaps)
    return made


def draw(report: dict[str, Any], stem: Path) -> None:
    """STEM.png and STEM.svg: the gaps of all positions and of the divergences, all bf16 ways and shapes together."""
    from tools.sim.plots import headless, save

    temperatures = sorted({arm["temperature"] for arm in report["arms"]})
    figure, panels = headless().subplots(1, len(temperatures), figsize=(5.6 * len(temperatures), 4.2), squeeze=False)
    for axis, temperature in zip(panels[0], temperatures, strict=True):
        arms = [arm for arm in report["arms"] if arm["temperature"] == temperature and arm["divergences"]]
        gaps = {base["way"]: base["gaps"] for base in report["baselines"] if base["temperature"] == temperature}
        every = np.concatenate([gaps[arm["way"]] for arm in arms]) if arms else np.concatenate(list(gaps.values()))
        there = [one["plain_gap"] for arm in arms for one in arm["found"]]
        edges = np.linspace(0, EDGE + EDGE / BARS, BARS + 2)
        for values, label, colour in ((every, "all positions", "#b8c4d0"), (there, "divergences", "#c0504d")):
            axis.hist(np.minimum(values, EDGE + 1e-9), bins=edges, label=f"{label} ({len(values)})", color=colour)
        axis.set_yscale("log")
        axis.set_xlabel("gap of the best two scores (nats; last bar: 1 and more)")
        axis.set_title("greedy" if temperature == 0 else f"sampled, T = {temperature:g}", fontsize=10)
        axis.legend(fontsize=8)
    panels[0][0].set_ylabel("positions")
    save(figure, stem, "Where speculation in bf16 leaves plain decoding: at near-ties only")
