"""The comparison as a picture beside its JSON: time per token of every arm, or tokens per second by clients."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tools.pictures import drawn

PANELS = {
    "tokens per second, all clients": ("tokens_per_s",),
    "ms to the first token, p50 o, p95 ▲": ("first_ms_p50", "first_ms_p95"),
    "ms between chunks, p50 o, p95 ▲": ("between_ms_p50", "between_ms_p95"),
}
"""What is shown by the number of clients."""


def plot(found: Mapping[str, Any], out: Path) -> list[Path]:
    """Beside OUT, as of `drawn`."""
    levels = {row["clients"] for row in found["rows"]}
    return drawn(out, (9, 6 if len(levels) == 1 else 12), partial(_draw, found, len(levels)))


def _draw(found: Mapping[str, Any], levels: int, figure: Any) -> None:
    if levels > 1:
        _by_clients(figure.subplots(len(PANELS), 1, sharex=True), found["rows"])
    else:
        _bars(figure.subplots(), found["rows"])
    scene = f"{found['engine']}, target {found['peer_target']['file']}, draft {found['draft']['file']}"
    figure.suptitle(f"{scene}, {found['rtt_ms']:g} ms", fontsize=9)


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


def _by_clients(panels: Any, rows: list[dict[str, Any]]) -> None:
    for axes, (label, names) in zip(panels, PANELS.items(), strict=True):
        for number, arm in enumerate(dict.fromkeys(row["arm"] for row in rows)):
            own = [row for row in rows if row["arm"] == arm]
            peer = arm.startswith("llama-server")
            for name in names:
                axes.plot(
                    [row["clients"] for row in own], [row[name] for row in own], "--" if peer else "-",
                    marker="^" if name.endswith("p95") else "o", color=f"C{number}",
                    label=f"{arm} [{own[0]['cores']}]" if name == names[0] else None,
                )  # fmt: skip
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    panels[-1].set_xlabel("clients at once")
    panels[0].legend(fontsize=7)
