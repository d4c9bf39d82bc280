"""Whether a worker chooses its leaves as well as any fixed number does: `python -m tools.sim leaves`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgespec.lab.link_model import LinkModel
from edgespec.lab.sim.world import Curve, Steps
from tools.sim.experiment import Arm, Cell, Progress, Row, WorkerSpec, rows_of
from tools.sim.process import Iid

TARGETS = {
    "plain": Curve({1: 0.028, 4: 0.030, 16: 0.036}),
    "deep": Curve({1: 0.105, 4: 0.112, 16: 0.140}),
}
"""The demo's targets, as measured on one core."""
DRAFTS = {
    "sequential": Curve({1: 0.006, 2: 0.012, 4: 0.024, 8: 0.048, 16: 0.096}),
    "Q4_0-like": Curve({1: 0.0045, 2: 0.0074, 3: 0.0106, 4: 0.0076, 8: 0.014, 16: 0.027}),
    "flat": Curve({1: 0.006, 16: 0.006}),
}
FIXED = (1, 2, 4, 8, 16)
MATCHES = (0.75, 0.92)
POLICIES = ("wanspec", "adaptive")
RTT_S = 0.02
RUNS = 20


def cells(runs: int) -> Iterator[Cell]:
    """Every number of leaves, and the worker's own choice (0), for each pair of models and policy."""
    for target, verify in TARGETS.items():
        for draft, curve in DRAFTS.items():
            for match in MATCHES:
                for policy in POLICIES:
                    for leaves in (*FIXED, 0):
                        worker = WorkerSpec("bestfirst", 4, 0.0, leaves or max(FIXED), fixed=leaves > 0)
                        phi = 2.0 if policy == "wanspec" else None
                        arm = Arm(f"{policy} {leaves}", policy, worker, phi=phi, local=False)
                        labels = {"target": target, "draft": draft, "match": match, "policy": policy, "leaves": leaves}
                        steps = Steps(verify, curve, curve)
                        yield Cell(arm, Iid(match=match), LinkModel(RTT_S), steps, runs=runs, labels=labels)


def leaves(out: Path, processes: int, progress: Progress, runs: int | None = None) -> dict[str, Any]:
    """One row per cell; the text has one line per pair of models and policy."""
    rows = rows_of(list(cells(runs or RUNS)), processes, progress)
    return {"figure": "leaves", "rows": rows, "text": text(rows)}


def text(rows: list[Row]) -> str:
    """Time per token with each fixed number of leaves and by choice, relative to the best fixed number; and frames."""
    head = " ".join(f"{count:>6}" for count in FIXED)
    lines = [f"target draft      match policy   {head} | chosen frames/pass stale"]
    size = len(FIXED) + 1
    for start in range(0, len(rows), size):
        *fixed, own = rows[start : start + size]
        best = min(row["ms_per_token"] for row in fixed)
        shown = " ".join(f"{row['ms_per_token'] / best:6.3f}" for row in fixed)
        lines.append(
            f"{own['target']:6} {own['draft']:10} {own['match']:5} {own['policy']:8} {shown} | "
            f"{own['ms_per_token'] / best:6.3f} {own['frames_per_round']:11.1f} {own['stale_frames']:5.2f}"
        )
    return "\n".join(lines)
