"""The report's figures, as PNG and SVG: heat maps by hour of the day and by machine, and a timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.core.errors import ConfigError
from edgespec_lab.sim.plots import headless, save
from edgespec_lab.survey.analysis import FEW, HOURS, Floats, Series, hourly, measured, percentiles

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999933")
"""Distinguishable by colour-blind people (Okabe and Ito)."""
DASHES = ("-", (0, (1, 1.2)), (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)))


def curve(axis: Any, hours: Any, figures: Floats, enough: Any, number: int, label: str) -> None:
    """A line with filled marks, hollow where there are few values."""
    colour = COLOURS[number % len(COLOURS)]
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    axis.plot(hours, figures, color=colour, linestyle=dash, linewidth=1.5, label=label)
    for chosen, face in ((enough, colour), (~enough, "white")):
        axis.plot(hours[chosen], figures[chosen], "o", color=colour, markersize=4, markerfacecolor=face)


def heat(
    axis: Any,
    grid: Floats,
    marked: Any,
    rows: Sequence[str],
    *,
    texts: Any = None,
    cmap: str = "viridis",
    **scale: Any,
) -> Any:
    """A grid of coloured cells [rows, columns] with numbers in them: `texts`, or the values; `marked` ones hatched."""
    plt = headless()
    colours = plt.get_cmap(cmap).with_extremes(bad="#e4e4e4")
    image = axis.imshow(np.ma.masked_invalid(grid), aspect="auto", cmap=colours, **scale)
    for (row, column), value in np.ndenumerate(grid):
        if np.isnan(value):
            continue
        red, green, blue, _ = image.cmap(image.norm(value))
        ink = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "black"
        text = _number(value) if texts is None else f"{texts[row, column]}"
        axis.text(column, row, text, ha="center", va="center", fontsize=8, color=ink, zorder=3)
        if marked[row, column]:
            corner = (column - 0.5, row - 0.5)
            axis.add_patch(plt.Rectangle(corner, 1, 1, fill=False, hatch="///", edgecolor="#9a9a9a", lw=0, zorder=2))
    axis.set_yticks(range(len(rows)), [short(row) for row in rows], fontsize=8)
    axis.set_xticks(range(grid.shape[1]), range(grid.shape[1]), fontsize=8)
    axis.set_xticks(np.arange(grid.shape[1] + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(grid.shape[0] + 1) - 0.5, minor=True)
    axis.grid(which="minor", color="white", linewidth=0.8)
    axis.tick_params(which="both", length=0)
    return image


def _number(value: float) -> str:
    """Few digits: what fits a cell."""
    if value >= 9999.5:
        return f"{value / 1000:.0f}k"
    if value >= 9.95 or value == 0:
        return f"{value:.0f}"
    if value >= 0.995:
        return f"{value:.1f}"

    return f"{value:.2f}"


def scale_of(values: Floats) -> Any:
    """Logarithmic where the values differ by more than a factor of ten."""
    from matplotlib import colors

    there = values[~np.isnan(values)]
    low, high = (float(there.min()), float(there.max())) if there.size else (0.0, 1.0)
    if low > 0 and high > 10 * low:
        return colors.LogNorm(low, high)

    return colors.Normalize(0, high or 1.0)


def top(values: Floats) -> float:
    """The greatest value, 1 where there is none above 0."""
    there = values[~np.isnan(values)]
    if there.size and there.max() > 0:
        return float(there.max())
    return 1.0


def plain_ticks(axis: Any) -> None:
    """Numbers instead of powers of ten, and at 1, 2 and 5 times those on a logarithmic axis."""
    from matplotlib import ticker

    if axis.get_scale() == "log":
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))


def short(label: str) -> str:
    """A label that fits beside an axis."""
    if len(label) <= 50:
        return label
    return label[:49] + "…"


def write(figure: Any, out: Path, heading: str, note: str) -> None:
    """Writes and forgets a figure. Raises ConfigError where the files cannot be written."""
    try:
        save(figure, out, f"{heading}\n{note}")
    except OSError as error:
        raise ConfigError(f"{out}: the plots cannot be written ({error.strerror or error}).") from None


CAPTION = "Hatched: fewer than {p50} values behind a p50, {p95} behind a p95. Grey: no value."


def heat_maps(several: Sequence[Series], out: Path, heading: str) -> None:
    """Endpoint × hour of the day: p50 and p95 of the time to the first token and of the TCP handshake."""
    plt = headless()
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


def sources(several: Sequence[Series], out: Path, heading: str) -> None:
    """WANSpec's figure 2: machine that asked × endpoint, p50 and p95 of the time to the first token."""
    plt = headless()
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
    width = 4 + 2 * 0.9 * len(columns)
    height = 2.6 + 0.4 * len(rows)
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
    plt = headless()
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
