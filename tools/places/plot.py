"""A table of several places as a picture beside its JSON: ratios to co-located k = 2 over the round trip."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tools.pictures import drawn

MARKS = {"balanced": "o", "latency": "s"}


def plot(figures: Mapping[str, Any], out: Path) -> list[Path]:
    """Beside OUT, as of `drawn`."""
    return drawn(out, (10, 4.2), partial(_draw, figures))


def _draw(figures: Mapping[str, Any], figure: Any) -> None:
    places = list(dict.fromkeys(_label(row) for row in figures["rows"]))
    for axes, kind in zip(figure.subplots(1, 2, sharey=True), ("decoding", "whole"), strict=True):
        for prefer, mark in MARKS.items():
            rows = [row for row in figures["rows"] if row["prefer"] == prefer]
            found = [row[kind]["k2"] for row in rows]
            ends = [[one["median"] - one["low"] for one in found], [one["high"] - one["median"] for one in found]]
            x = [places.index(_label(row)) for row in rows]
            axes.errorbar(x, [one["median"] for one in found], yerr=ends, marker=mark, capsize=3, label=prefer)
        local = figures["local"]
        best = local["colocated_best"][kind] / local["colocated_k2"][kind]
        axes.axhline(1.0, color="grey", linewidth=0.8, linestyle=":", label="co-located k = 2")
        axes.axhline(best, color="grey", linewidth=0.8, linestyle="--", label="best k")
        axes.set_xticks(range(len(places)), places, fontsize=8)
        axes.set_xlabel("round trip")
        axes.set_title("decoding" if kind == "decoding" else "whole completion", fontsize=9)
    figure.axes[0].set_ylabel("time per token / co-located k = 2")
    figure.axes[0].legend(fontsize=7)
    setting = figures["setting"]
    figure.suptitle(f"target {setting['target']}, draft {setting['draft']}, {figures['prompts']} prompts", fontsize=10)


def _label(row: Mapping[str, Any]) -> str:
    return f"{row['rtt_ms']:g} ms"
