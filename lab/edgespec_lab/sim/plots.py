"""Figures as PNG and SVG beside the JSON, drawn from its rows alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

Row = dict[str, Any]
MARKS = "osD^vPX*<>hd"


def lines(rows: Sequence[Row], out: Path, title: str, panels: Sequence[tuple[str, str]]) -> None:
    """One panel per (column, label), the round trip on the x axis, one line per `arm`; one line of panels per kind of
    `tokens`."""
    pyplot = headless()
    kinds = list(dict.fromkeys(row["tokens"] for row in rows))
    width = 5.4 * len(panels)
    height = 2.9 * len(kinds) + 0.6
    figure, axes = pyplot.subplots(
        len(kinds), len(panels), figsize=(width, height), squeeze=False, sharex=True, sharey="col"
    )
    for kind, line in zip(kinds, axes, strict=True):
        mine = [row for row in rows if row["tokens"] == kind]
        for axis, (column, label) in zip(line, panels, strict=True):
            for arm, mark in zip(dict.fromkeys(row["arm"] for row in mine), cycle(MARKS)):
                points = [(row["rtt_ms"], row[column]) for row in mine if row["arm"] == arm]
                axis.plot(*zip(*points, strict=True), marker=mark, markersize=4, linewidth=1.3, label=arm)
            axis.axhline(1.0, color="grey", linewidth=0.8, linestyle=":")
            axis.set_title(kind, fontsize=9)
            axis.set_ylabel(label, fontsize=9)
            axis.grid(alpha=0.25)
        line[-1].legend(fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("round trip time (ms)")
    save(figure, out, title)


def pareto(rows: Sequence[Row], out: Path, title: str, *, joined: Iterable[str] = ()) -> None:
    """Latency against draft passes: one colour per `group` column; the groups in `joined` get a line."""
    pyplot = headless()
    figure, axis = pyplot.subplots(figsize=(7.5, 5.2))
    for group, mark in zip(dict.fromkeys(row["group"] for row in rows), cycle(MARKS)):
        chosen = sorted((row["draft_ratio"], row["latency_ratio"]) for row in rows if row["group"] == group)
        style = "-" if group in set(joined) else ""
        axis.plot(*zip(*chosen, strict=True), marker=mark, markersize=4, linestyle=style, linewidth=1, label=group)
    axis.axhline(1.0, color="grey", linewidth=0.8, linestyle=":")
    axis.set_xlabel("draft passes at the gateway, relative to co-located k = 2")
    axis.set_ylabel("latency, relative to co-located k = 2")
    axis.grid(alpha=0.25)
    axis.legend(fontsize=7)
    save(figure, out, title)


def bars(rows: Sequence[Row], out: Path, title: str) -> None:
    """Latency of every configuration as a bar."""
    pyplot = headless()
    figure, axis = pyplot.subplots(figsize=(7.5, 0.26 * len(rows) + 1.4))
    drawn = axis.barh([row["config"] for row in rows], [row["latency_ratio"] for row in rows], color="#4878a8")
    axis.bar_label(drawn, fmt="%.2f", padding=2, fontsize=7)
    axis.axvline(1.0, color="grey", linewidth=0.8, linestyle=":")
    axis.set_xlabel("latency / co-located k = 2")
    axis.margins(x=0.08, y=0.02)
    axis.invert_yaxis()
    axis.tick_params(labelsize=7)
    save(figure, out, title)


def pairs(rows: Sequence[Row], out: Path, title: str, panels: Sequence[tuple[str, str]]) -> None:
    """One panel per (column, label): a bar for `sim_` + column beside one for the column, grouped by round trip."""
    pyplot = headless()
    figure, axes = pyplot.subplots(1, len(panels), figsize=(6.4 * len(panels), 1.3 + 0.6 * len(rows)))
    names = [f"{row['config']}\n{row['rtt_ms']:g} ms" for row in rows]
    places = range(len(rows))
    for axis, (column, label) in zip(axes, panels, strict=True):
        for shift, prefix, colour, name in ((-0.2, "sim_", "#b8c8d8", "simulated"), (0.2, "", "#4878a8", "measured")):
            values = [row[prefix + column] for row in rows]
            bars = axis.barh([place + shift for place in places], values, height=0.38, color=colour, label=name)
            axis.bar_label(bars, fmt="%.3f", fontsize=7, padding=2)
        axis.set_yticks(list(places), names, fontsize=7)
        axis.axvline(1.0, color="grey", linewidth=0.8, linestyle=":")
        axis.set_xlabel(label)
        axis.set_xlim(0, 1.15 * max([1.0, *(row[column] for row in rows), *(row["sim_" + column] for row in rows)]))
        axis.invert_yaxis()
    axes[0].legend(fontsize=7, loc="lower left", bbox_to_anchor=(0, 1.0), ncol=2, frameon=False)
    save(figure, out, title)


def headless() -> Any:
    """matplotlib.pyplot, for files only."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "edgespec"  # the same figure gives the same file
    from matplotlib import pyplot as plt

    return plt


def save(figure: Any, out: Path, title: str) -> None:
    """Writes `out` with .png and with .svg, and frees the figure."""
    figure.suptitle(title, fontsize=11)
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    figure.savefig(out.with_suffix(".png"), dpi=110)
    figure.savefig(out.with_suffix(".svg"), metadata={"Date": None})
    headless().close(figure)
