"""Figures as pictures beside their JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def drawn(out: Path, size: tuple[float, float], draw: Callable[[Any], object]) -> list[Path]:
    """Writes OUT.png and OUT.svg; nothing where matplotlib is not installed (extra `dev`).

    `draw` is called with the figure, whose `size` is in inches.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    figure = Figure(figsize=size, layout="constrained")
    draw(figure)
    written = [out.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in written:
        figure.savefig(path)
    return written


def bars(axes: Any, rows: Sequence[Mapping[str, Any]], group: str, one: str, column: str) -> list[float]:
    """A bar for each row, as high as its `column`; those of one `group` stand side by side, coloured by `one`.

    Returns the middle of each.
    """
    groups, names = (list(dict.fromkeys(row[key] for row in rows)) for key in (group, one))
    width = 0.8 / len(names)
    places = [groups.index(row[group]) - 0.4 + width * (names.index(row[one]) + 0.5) for row in rows]
    for name in names:
        own = [(place, row[column] or 0) for place, row in zip(places, rows, strict=True) if row[one] == name]
        axes.bar(*zip(*own, strict=True), width, label=name)
    axes.set_xticks(range(len(groups)), groups)
    return places
