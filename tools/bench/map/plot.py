"""The map as one picture: ours ÷ the best co-located arm by round trip and acceptance, a panel for each load."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tools.pictures import drawn


def draw(report: Mapping[str, Any], out: Path) -> list[Path]:
    """Beside OUT, as of `drawn`."""
    return drawn(out, (13, 3.4), partial(_draw, report["rows"]))


def _draw(rows: list[dict[str, Any]], figure: Any) -> None:
    loads, ratios, rates = (sorted({row[name] for row in rows}) for name in ("clients", "ratio", "acceptance"))
    panels = figure.subplots(1, len(loads), sharey=True)
    for axes, clients in zip(panels, loads, strict=True):
        at = {(row["acceptance"], row["ratio"]): row for row in rows if row["clients"] == clients}
        grid = [[at.get((rate, ratio), {}).get("to_best", math.nan) for ratio in ratios] for rate in rates]
        shown = axes.imshow(grid, origin="lower", cmap="RdBu", vmin=0.5, vmax=1.5, aspect="auto")
        for y, line in enumerate(grid):
            for x, value in enumerate(line):
                axes.text(x, y, "" if math.isnan(value) else f"{value:.2f}", ha="center", va="center", fontsize=7)
        axes.set_xticks(range(len(ratios)), [f"{ratio:g}" for ratio in ratios])
        axes.set_yticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        axes.set_title(f"{clients} client{'s' * (clients > 1)}", fontsize=9)
    panels[0].set_ylabel("acceptance")
    figure.supxlabel("round trip ÷ target pass", fontsize=9)
    figure.suptitle(
        "Tokens a second of a client: with workers ÷ the best co-located arm (blue: remote wins)", fontsize=10
    )
    figure.colorbar(shown, ax=panels)
