"""`edgespec survey report`: figures on the terminal, as JSON and as plots."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from edgespec.survey import plots
from edgespec.survey.analysis import Series

DAY_S = 86_400.0
STALL_MS = 5.0
"""Waits for a processor from which on the table warns."""


def draw(several: Sequence[Series], figures: Mapping[str, Any], out: Path, zone: dt.tzinfo) -> list[Path]:
    """Writes the plots beside each other, `out` being the beginning of their names; returns the PNG files."""
    heading = title(figures)
    made = {"heatmap": lambda path: plots.heat_maps(several, path, heading)}
    made["hours"] = lambda path: plots.curves(several, path, heading)
    if figures["differences"]:
        made["regions"] = lambda path: plots.regions(several, figures["differences"], path, heading)
    if len({one.source for one in several}) > 1:
        made["sources"] = lambda path: plots.sources(several, path, heading)
    if max(one.at[-1] for one in several) - min(one.at[0] for one in several) > 1.1 * DAY_S:
        made["timeline"] = lambda path: plots.timeline(several, path, heading, lambda at: _stamp(at, zone))
    for name, plot in made.items():
        plot(out.with_name(f"{out.name}-{name}.png"))
    return [out.with_name(f"{out.name}-{name}.png") for name in made]


def title(figures: Mapping[str, Any]) -> str:
    """What all plots say: how much was measured, when, and whether the clock was real."""
    text = (
        f"edgespec survey: {figures['samples']:,} requests, {figures['from'][:16].replace('T', ' ')} to "
        f"{figures['to'][:16].replace('T', ' ')} ({figures['timezone']})"
    )
    if figures["clock_scale"] != 1:
        text += (
            f"\nDEMONSTRATION: the clock ran {figures['clock_scale']:g} times too fast: hours and dates are made up, "
            "latencies are as measured"
        )
    return text


def show(figures: Mapping[str, Any], console: Console) -> None:
    """The table of endpoints, and the pairs that differ."""
    print(title(figures))
    table = Table(caption="milliseconds; TTFT: time to first token", caption_justify="left")
    heads = ("asked", "failed", "TTFT\np50", "TTFT\np95", "TCP\np50", "TCP\np95", "TLS\np50", "tokens\nper s")
    table.add_column("endpoint", overflow="fold")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for one in figures["endpoints"]:
        times = [one[name][q] for name in ("ttft_ms", "connect_ms") for q in ("p50", "p95")]
        cells = [*times, one["tls_ms"]["p50"], one["tokens_per_s"]["p50"]]
        table.add_row(one["label"], str(one["samples"]), f"{one['failure_rate']:.1%}", *map(_cell, cells))
    console.print(table)
    for one in figures["endpoints"]:
        failures = {name: count for name, count in one["outcomes"].items() if name != "ok"}
        if failures:
            print(f"{one['label']} failed: {', '.join(f'{name} {count}' for name, count in failures.items())}.")
        if (stalled_ms := one["stalled_ms"]["p95"] or 0.0) > STALL_MS:
            print(f"{one['label']}: this machine was busy, and may have added up to {stalled_ms:.0f} ms (p95) itself.")
    for line in findings(figures["differences"]):
        print(line)


def findings(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each pair in which another endpoint has the shorter tail, beyond chance."""
    lines = []
    for pair in sorted(pairs, key=lambda one: -(one["ttft_p95_ms"] or 0)):
        edges = pair["ttft_p95_ms_interval"]
        if edges is None or edges[0] <= 0:
            continue
        model = "" if pair["same_model"] else " (another model)"
        hours = f"{pair['hours_other_faster_p95']} of the {pair['hours_compared']} hours of the day with enough samples"
        lines.append(
            f"p95 TTFT: {pair['other']} is {pair['ttft_p95_ms']:.0f} ms ({edges[0]:.0f} to {edges[1]:.0f}) below "
            f"{pair['home']}{model}; so it is in {hours}. "
            f"TCP connect to it: {_cell(pair['other_connect_p50_ms'])} ms."
        )
    return lines


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _stamp(at: float, zone: dt.tzinfo) -> str:
    return dt.datetime.fromtimestamp(at, zone).strftime("%d %b %H:%M")
