"""What several workers gain that share one request's branches: `python -m tools.sim workers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgespec.lab.link_model import LinkModel
from tools.sim.config import load, steps_of, tokens_of
from tools.sim.experiment import Arm, Cell, Progress, Row, WorkerSpec, rows_of

COUNTS, RTTS_MS = (1, 2, 4), (0, 20, 50)
LEAVES = 16


def shared(count: int, leaves: int = LEAVES) -> Arm:
    """So many workers that share an answer, each with so many leaves a step; nothing is drafted at the gateway."""
    return Arm(f"{count} x {leaves} leaves", "adaptive", WorkerSpec("bestfirst", 4, 0.0, leaves, count), local=False)


def arms() -> list[Arm]:
    """So many workers; one with as many leaves a step as two or four have together, which bounds them; the oracle."""
    made = [*map(shared, COUNTS), *(shared(1, count * LEAVES) for count in COUNTS[1:])]
    return [*made, Arm("oracle", "adaptive", WorkerSpec("oracle", 4, 0.0, 1), local=False)]


def workers(out: Path, processes: int, progress: Progress, runs: int | None = None) -> dict[str, Any]:
    """One row per arm and round trip, nothing drafted at the gateway, at WANSpec's step times."""
    config = load("workers")
    steps, kind, tokens = steps_of(config), tokens_of(config), config["run"]["tokens"]
    cells = [
        Cell(arm, kind, LinkModel(rtt / 1000), steps, tokens, runs or config["run"]["runs"])
        for arm in arms()
        for rtt in RTTS_MS
    ]
    rows = rows_of(cells, processes, progress)
    return {"figure": "workers", "rows": rows, "text": text(rows)}


def text(rows: list[Row]) -> str:
    """Latency relative to co-located k = 2, and tokens a round."""
    lines = [f"{'':16}" + "".join(f"{rtt:>9} ms      " for rtt in RTTS_MS)]
    for at in range(0, len(rows), len(RTTS_MS)):
        shown = (f"{row['latency_ratio']:9.3f} ({row['tokens_per_round']:.2f})" for row in rows[at : at + len(RTTS_MS)])
        lines.append(f"{rows[at]['config']:16}" + " ".join(shown))
    return "\n".join(lines)
