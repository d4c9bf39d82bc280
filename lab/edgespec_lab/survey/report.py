"""The report of a survey: figures on the terminal, as JSON and as plots."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from edgespec_lab.survey import plots
from edgespec_lab.survey.analysis import Series

DAY_S = 86_400.0
STALL_MS = 5.0
"""Minimum wait for a processor for which the table prints a warning."""


def draw(several: Sequence[Series], figures: Mapping[str, Any], out: Path, zone: dt.tzinfo) -> list[Path]:
    """Writes the plots beside each other, `out` being the beginning of their names; returns the PNG files."""
    heading = title(figures)
    made = {"heatmap": lambda path: plots.heat_maps(several, path, heading)}
    if len({one.source for one in several}) > 1:
        made["sources"] = lambda path: plots.sources(several, path, heading)
    if max(one.at[-1] for one in several) - min(one.at[0] for one in several) > 1.1 * DAY_S:
        made["timeline"] = lambda path: plots.timeline(several, path, heading, lambda at: _stamp(at, zone))
    for name, plot in made.items():
        plot(out.with_name(f"{out.name}-{name}.png"))

    return [out.with_name(f"{out.name}-{name}.png") for name in made]


def title(figures: Mapping[str, Any]) -> str:
    """The title of all plots: number of samples and period."""
    first, last = (figures[name][:16].replace("T", " ") for name in ("from", "to"))
    count = f"{figures['samples']:,} request{'s' * (figures['samples'] != 1)}"
    return f"edgespec survey: {count}, {first} to {last} ({figures['timezone']})"


def show(figures: Mapping[str, Any]) -> None:
    """A table of endpoints for each machine, and what failed."""
    print(title(figures))
    console = Console(markup=False, width=None if sys.stdout.isatty() else 120)
    for source in dict.fromkeys(one["source"] for one in figures["endpoints"]):
        console.print(_table([one for one in figures["endpoints"] if one["source"] == source], source))
    for one in figures["endpoints"]:
        failures = {name: count for name, count in one["outcomes"].items() if name != "ok"}
        if failures:
            print(f"{one['label']} failed: {', '.join(f'{name} {count}' for name, count in failures.items())}.")
        if (stalled_ms := one["stalled_ms"]["p95"] or 0.0) > STALL_MS:
            print(f"{one['label']}: this machine was busy, and may have added up to {stalled_ms:.0f} ms (p95) itself.")


def _table(endpoints: Sequence[Mapping[str, Any]], source: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    table.caption = f"from {source}, in milliseconds; TTFT: time to first token, TCP and TLS: handshakes"
    table.add_column("endpoint", overflow="fold")
    for head in ("asked", "failed", "TTFT\np50", "TTFT\np95", "TCP\np50", "TCP\np95", "TLS\np50", "tokens\nper s"):
        table.add_column(head, justify="right", no_wrap=True)
    for one in endpoints:
        times = [one[name][q] for name in ("ttft_ms", "connect_ms") for q in ("p50", "p95")]
        cells = [*times, one["tls_ms"]["p50"], one["tokens_per_s"]["p50"]]
        table.add_row(one["target"], str(one["samples"]), f"{one['failure_rate']:.1%}", *map(_cell, cells))

    return table


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _stamp(at: float, zone: dt.tzinfo) -> str:
    return dt.datetime.fromtimestamp(at, zone).strftime("%d %b %H:%M")
