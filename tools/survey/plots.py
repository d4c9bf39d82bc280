"""The report's figures, as PNG and SVG: heat maps by hour of the day, hourly curves, and differences of regions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.survey.analysis import FEW, HOURS, Floats, Series, hourly, measured, percentiles
from tools.survey.differences import above_minimum
from tools.survey.drawing import curve, heat, plain_ticks, pyplot, scale_of, short, top, write

CAPTION = "Hatched: fewer than {p50} values behind a p50, {p95} behind a p95. Grey: no value."


def heat_maps(several: Sequence[Series], out: Path, heading: str) -> None:
    """Endpoint × hour of the day: p50 and p95 of the time to the first token and of the TCP handshake."""
    plt = pyplot()
    height = 1.9 + 5 * (0.85 + 0.34 * len(several))
    figure, axes = plt.subplots(5, 1, figsize=(13.5, height), layout="constrained")
    labels = [one.label for one in several]
    panels = [("ttft_ms", "time to first token"), ("connect_ms", "TCP connect")]
    for half, (quantity, name) in enumerate(panels):
        grids = [np.array([hourly(one, quantity, q)[0] for one in several]) for q in (50, 95)]
        counts = np.array([hourly(one, quantity, 50)[1] for one in several])
        scale = scale_of(np.concatenate(grids))
        pair = axes[2 * half : 2 * half + 2]
        for axis, grid, q in zip(pair, grids, ("p50", "p95")):
            image = heat(axis, grid, counts < FEW[q], labels, norm=scale)
            axis.set_title(f"{name}, {q} (ms)", fontsize=10, loc="left")
        bar = figure.colorbar(image, ax=pair, pad=0.01, fraction=0.025, label=f"{name} (ms)")
        plain_ticks(bar.ax.yaxis)
    asked, failed = (np.array(rows) for rows in zip(*map(_requests, several)))
    rate = np.divide(100.0 * failed, asked, out=np.full(asked.shape, np.nan), where=asked > 0)
    image = heat(axes[-1], rate, asked < 0, labels, texts=asked, cmap="YlOrRd", vmin=0, vmax=max(10.0, top(rate)))
    axes[-1].set_title("requests (number) and how many of them failed (colour)", fontsize=10, loc="left")
    figure.colorbar(image, ax=axes[-1:], pad=0.01, fraction=0.025, label="failed (%)")
    axes[-1].set_xlabel("hour of the day")
    write(figure, out, heading, CAPTION.format(**FEW))


def curves(several: Sequence[Series], out: Path, heading: str) -> None:
    """Hour by hour: p50 and p95 of the time to the first token and of the TCP handshake, and the rate of failures."""
    plt = pyplot()
    figure, axes = plt.subplots(2, 3, figsize=(15, 7), sharex=True, layout="constrained")
    hours = np.arange(HOURS)
    for column, (quantity, name) in enumerate([("ttft_ms", "time to first token"), ("connect_ms", "TCP connect")]):
        for row, q in enumerate(("p50", "p95")):
            axis = axes[row][column]
            for number, one in enumerate(several):
                figures, counts = hourly(one, quantity, int(q[1:]))
                curve(axis, hours, figures, counts >= FEW[q], number, one.label)
            axis.set_title(f"{name}, {q} (ms)", fontsize=10, loc="left")
            axis.set_ylim(bottom=0)
    for number, one in enumerate(several):
        asked, failed = _requests(one)
        rate = np.divide(100.0 * failed, asked, out=np.full(HOURS, np.nan), where=asked > 0)
        curve(axes[0][2], hours, rate, asked >= FEW["p95"], number, one.label)
        curve(axes[1][2], hours, asked.astype(float), asked >= 0, number, one.label)
    axes[0][2].set_title("failed requests (%)", fontsize=10, loc="left")
    axes[1][2].set_title("requests", fontsize=10, loc="left")
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.set_xlim(-0.5, HOURS - 0.5)
        axis.set_xticks(range(0, HOURS, 3))
    for axis in axes[0][2], axes[1][2]:
        axis.set_ylim(bottom=0)
    for axis in axes[1]:
        axis.set_xlabel("hour of the day")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), fontsize=9, frameon=False)
    write(
        figure, out, heading, "Hollow marks: fewer than {p50} values behind a p50, {p95} behind others.".format(**FEW)
    )


def regions(several: Sequence[Series], pairs: Sequence[Mapping[str, Any]], out: Path, heading: str) -> None:
    """What moving work could gain: by the hour over the least loaded endpoint, and for each pair at the tail."""
    plt = pyplot()
    size = len(several)
    widths = (14.0, 4.0 + 0.5 * size)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(sum(widths), 3.0 + 0.45 * size), width_ratios=widths, layout="constrained"
    )
    labels = [one.label for one in several]
    above = above_minimum(several)
    counts = np.array([hourly(one, "wait_ms", 50)[1] for one in several])
    image = heat(left, above, counts < FEW["p50"], labels, cmap="YlOrRd", vmin=0, vmax=top(above))
    figure.colorbar(image, ax=left, pad=0.01, fraction=0.03, label="ms")
    left.set_title("wait (TTFT less TCP connect), p50: above the least of the hour (ms)", fontsize=10, loc="left")
    left.set_xlabel("hour of the day")
    gain, unsure = np.full((size, size), np.nan), np.zeros((size, size), dtype=bool)
    place = {label: number for number, label in enumerate(labels)}
    for pair in pairs:
        cell = place[pair["home"]], place[pair["other"]]
        if pair["ttft_p95_ms"] is not None:
            gain[cell] = pair["ttft_p95_ms"]
            unsure[cell] = (edges := pair["ttft_p95_ms_interval"]) is None or edges[0] <= 0 <= edges[1]
    limit = top(np.abs(gain))
    image = heat(right, gain, unsure, labels, cmap="RdBu", vmin=-limit, vmax=limit, signed=True)
    figure.colorbar(image, ax=right, pad=0.02, fraction=0.05, label="ms")
    right.set_xticks(range(size), [short(one.target) for one in several], rotation=40, ha="right", fontsize=8)
    right.set_title("p95 TTFT: gained by asking the column\ninstead of the row (ms)", fontsize=10, loc="left")
    note = (
        "Hatched left: few values; right: the 95 % interval holds 0, or there is none. Grey: nothing to compare with."
    )
    write(figure, out, heading, note)


def sources(several: Sequence[Series], out: Path, heading: str) -> None:
    """WANSpec's figure 2: machine that asked × endpoint, p50 and p95 of the time to the first token."""
    plt = pyplot()
    rows = list(dict.fromkeys(one.source for one in several))
    columns = list(dict.fromkeys(one.target for one in several))
    grids = {q: np.full((len(rows), len(columns)), np.nan) for q in FEW}
    few = {q: np.ones((len(rows), len(columns)), dtype=bool) for q in FEW}
    for one in several:
        values = measured(one.values["ttft_ms"])
        cell = rows.index(one.source), columns.index(one.target)
        for q, least in FEW.items():
            grids[q][cell] = percentiles([values], int(q[1:]))[0]
            few[q][cell] = values.size < least
    width, height = 4 + 2 * 0.9 * len(columns), 2.6 + 0.4 * len(rows)
    figure, axes = plt.subplots(1, 2, figsize=(width, height), layout="constrained")
    for axis, q in zip(axes, FEW):
        image = heat(axis, grids[q], few[q], rows, norm=scale_of(np.concatenate(list(grids.values()))))
        axis.set_xticks(range(len(columns)), map(short, columns), rotation=30, ha="right", fontsize=8)
        axis.set_title(f"time to first token, {q} (ms)", fontsize=10, loc="left")
    bar = figure.colorbar(image, ax=axes, pad=0.01, fraction=0.03, label="time to first token (ms)")
    plain_ticks(bar.ax.yaxis)
    write(figure, out, heading, CAPTION.format(**FEW))


def timeline(several: Sequence[Series], out: Path, heading: str, stamp: Callable[[float], str]) -> None:
    """WANSpec's figure 4: p50 and p95 of the time to the first token for each hour of the data."""
    plt = pyplot()
    figure, axes = plt.subplots(2, 1, figsize=(13.5, 7), sharex=True, layout="constrained")
    first = min(one.at[0] for one in several) // 3600
    last = max(one.at[-1] for one in several) // 3600
    hours = np.arange(first, last + 1)
    for axis, q in zip(axes, FEW):
        for number, one in enumerate(several):
            groups = [measured(values) for values in _by_hour(one, hours)]
            figures = percentiles(groups, int(q[1:]))
            enough = np.array([group.size >= FEW[q] for group in groups])
            curve(axis, hours - first, figures, enough, number, one.label)
        axis.set_title(f"time to first token, {q} of each hour (ms)", fontsize=10, loc="left")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
    ticks = np.arange(0, len(hours), max(1, len(hours) // 12))
    axes[1].set_xticks(ticks, [stamp(3600 * (first + tick)) for tick in ticks], rotation=30, ha="right", fontsize=8)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), fontsize=9, frameon=False)
    write(figure, out, heading, "Hollow marks: fewer than {p50} values behind a p50, {p95} behind a p95.".format(**FEW))


def _requests(one: Series) -> tuple[Any, Any]:
    """Numbers of requests and of failures in each hour of the day, [24] each."""
    return np.bincount(one.hour, minlength=HOURS), np.bincount(one.hour[~one.ok], minlength=HOURS)


def _by_hour(one: Series, hours: Floats) -> list[Floats]:
    return [one.values["ttft_ms"][one.at // 3600 == hour] for hour in hours]
