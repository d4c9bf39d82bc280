"""The map as one picture: ours ÷ the best co-located arm by round trip and acceptance, a panel for each load."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.sim.plots import headless, save

READABLE = 1.3
"""A cell above it is too dark for black figures."""


def draw(report: Mapping[str, Any], out: Path) -> None:
    """Writes the picture beside OUT."""
    rows = report["rows"]
    loads, ratios, rates = (sorted({row[name] for row in rows}) for name in ("clients", "ratio", "acceptance"))
    figure, panels = headless().subplots(1, len(loads), figsize=(13, 3.4), sharey=True, layout="constrained")
    for axes, clients in zip(panels, loads, strict=True):
        at = {(row["acceptance"], row["ratio"]): row for row in rows if row["clients"] == clients}
        grid = [[at.get((rate, ratio), {}).get("to_best", math.nan) for ratio in ratios] for rate in rates]
        shown = axes.imshow(grid, origin="lower", cmap="RdBu", vmin=0.5, vmax=1.5, aspect="auto")
        for y, line in enumerate(grid):
            for x, value in enumerate(line):
                shown_as, colour = "" if math.isnan(value) else f"{value:.2f}", "white" if value > READABLE else "black"
                axes.text(x, y, shown_as, ha="center", va="center", fontsize=7, color=colour)
        axes.set_xticks(range(len(ratios)), [f"{ratio:g}" for ratio in ratios])
        axes.set_yticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        axes.set_title(f"{clients} client{'s' * (clients > 1)}", fontsize=9)
    panels[0].set_ylabel("acceptance")
    figure.supxlabel("round trip ÷ target pass", fontsize=9)
    figure.colorbar(shown, ax=panels)
    save(figure, out, "Tokens a second of a client: with workers ÷ the best co-located arm (blue: remote wins)")
