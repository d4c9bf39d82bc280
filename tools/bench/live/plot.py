"""The comparison as a picture beside its JSON: time per token of every arm, or tokens per second by clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def plot(found: Mapping[str, Any], out: Path) -> list[Path]:
    """Writes OUT.png and OUT.svg; nothing where matplotlib is not installed (extra `survey`)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    levels = sorted({row["clients"] for row in found["rows"]})
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    (_by_clients if len(levels) > 1 else _bars)(axes, found["rows"])
    scene = f"{found['engine']}, target {found['peer_target']['file']}, draft {found['draft']['file']}"
    axes.set_title(f"{scene}, {found['rtt_ms']:g} ms", fontsize=9)
    written = [out.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in written:
        figure.savefig(path)
    return written


def _bars(axes: Any, rows: list[dict[str, Any]]) -> None:
    for place, row in enumerate(reversed(rows)):
        median, low, high = row["whole_ms"]
        spread = [[max(median - low, 0)], [max(high - median, 0)]]
        colour = (
            "0.6" if row["arm"].startswith("llama-server") else "tab:blue" if row["cores"] == "1 + 1" else "tab:cyan"
        )
        axes.barh(place, median, xerr=spread, capsize=3, color=colour)
    axes.set_yticks(range(len(rows)), [f"{row['arm']} [{row['cores']}]" for row in reversed(rows)], fontsize=7)
    axes.set_xlabel("ms per token of whole completions: median over prompts, 95 % interval")


def _by_clients(axes: Any, rows: list[dict[str, Any]]) -> None:
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        style = "--" if arm.startswith("llama-server") else "-"
        label = f"{arm} [{own[0]['cores']}]"
        axes.plot([row["clients"] for row in own], [row["tokens_per_s"] for row in own], style, marker="o", label=label)
    axes.set_xlabel("clients at once")
    axes.set_ylabel("tokens per second, all clients together")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
