"""Parts of the report's figures: cells, curves, scales, and the files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.core.errors import ConfigError
from tools.survey.analysis import Floats

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999933")
"""Distinguishable by colour-blind people (Okabe and Ito)."""
DASHES = ("-", (0, (1, 1.2)), (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)))


def curve(axis: Any, hours: Any, figures: Floats, enough: Any, number: int, label: str) -> None:
    """A line with filled marks, hollow where there are few values."""
    colour, dash = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
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
    signed: bool = False,
    cmap: str = "viridis",
    **scale: Any,
) -> Any:
    """A grid of coloured cells [rows, columns] with numbers in them: `texts`, or the values; `marked` ones hatched."""
    plt = pyplot()
    colours = plt.get_cmap(cmap).with_extremes(bad="#e4e4e4")
    image = axis.imshow(np.ma.masked_invalid(grid), aspect="auto", cmap=colours, **scale)
    for (row, column), value in np.ndenumerate(grid):
        if np.isnan(value):
            continue
        red, green, blue, _ = image.cmap(image.norm(value))
        ink = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "black"
        text = _number(value, signed) if texts is None else f"{texts[row, column]}"
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


def _number(value: float, signed: bool) -> str:
    """Few digits: what fits a cell."""
    sign = "+" if signed and value > 0 else ""
    size = abs(value)
    if size >= 9999.5:
        return f"{sign}{value / 1000:.0f}k"
    if size >= 9.95 or size == 0:
        return f"{sign}{value:.0f}"
    return f"{sign}{value:.1f}" if size >= 0.995 else f"{sign}{value:.2f}"


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
    return float(there.max()) if there.size and there.max() > 0 else 1.0


def plain_ticks(axis: Any) -> None:
    """Numbers instead of powers of ten, and at 1, 2 and 5 times those on a logarithmic axis."""
    from matplotlib import ticker

    if axis.get_scale() == "log":
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))


def short(label: str) -> str:
    """A label that fits beside an axis."""
    return label if len(label) <= 50 else label[:49] + "…"


def pyplot() -> Any:
    """matplotlib without a display."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "edgespec"  # the same figure gives the same file
    from matplotlib import pyplot as plt

    return plt


def write(figure: Any, out: Path, heading: str, note: str) -> None:
    """Writes and forgets a figure. Raises ConfigError where the files cannot be written."""
    figure.suptitle(f"{heading}\n{note}", fontsize=10)
    try:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # it is laid out, which takes longer than to draw it
        figure.savefig(out.with_suffix(".png"), dpi=110)
        figure.savefig(out.with_suffix(".svg"), metadata={"Date": None})
    except OSError as error:
        raise ConfigError(f"{out}: the plots cannot be written ({error.strerror or error}).") from None
    finally:
        pyplot().close(figure)
