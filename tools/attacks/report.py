"""The table of all floods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

HEADINGS = (
    *("p50 ms", "with", "p99 ms", "with", "ratio", "max with", "first p50", "with"),
    *("failed", "lost", "log KB/min", "loop CPU", "with", "others"),
)
"""Of a pair the second one is with the flood. `first`: milliseconds to the first token. `loop CPU`: share of a core
that the gateway's event loop uses. `others`: cores that the rest of the machine uses, which spoils ratios from
0.15 on."""


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One line for each flood; milliseconds between two pieces of another key's completion."""
    found = Table(title="Inter-token latency of another key, without and with each flood")
    for heading in ("flood", "sender"):
        found.add_column(heading)
    for heading in HEADINGS:
        found.add_column(heading, justify="right")
    found.add_column("broken bounds")
    for row in rows:
        calm, under, cpu = row["control"], row["under_flood"], row["loop_cpu"]
        others = max(row["others_cpu"].values())
        cells = [
            *(calm["p50_ms"], under["p50_ms"], calm["p99_ms"], under["p99_ms"]),
            *(row["p99_ratio"], under["max_ms"], calm["first_p50_ms"], under["first_p50_ms"]),
            *(
                len(row["failed"]["flood"]),
                row["workers_lost"],
                row["log_kb_per_min"],
                cpu["control"],
                cpu["flood"],
                others,
            ),
        ]
        found.add_row(row["flood"], row["sender"], *map(_cell, cells), "; ".join(row["broken"]) or "-")
    return found


def _cell(value: float | None) -> str:
    if value is None:
        return "∞"
    return str(value) if isinstance(value, int) else f"{value:.0f}" if value >= 10 else f"{value:.2f}"
