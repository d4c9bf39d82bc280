"""`python -m edgespec_lab.sim phi`: what the learnt limit on the target's entropy saves or costs, on recorded tokens.

Recorded tokens have the relation between the target's entropy and the draft's match that real models have; in synthetic
ones only the draft's best token depends on it. Each place has three arms on the same completions:

    off         a limit that no entropy exceeds: policy `adaptive` without its entropy fallback
    constant    every token has the same entropy: how often the worker is on the path is learnt, and nothing else
    learnt      as shipped
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cloud_gateway.core.policies.registry import Policies
from cloud_gateway.core.policies.settings import PHI, Phi
from edgespec_lab.link_model import LinkModel
from edgespec_lab.sim import plots
from edgespec_lab.sim.config import load
from edgespec_lab.sim.experiment import Arm, Cell, Row, Simulator, WorkerSpec, simulate, spread
from edgespec_lab.sim.sweep import Place, steps_at
from edgespec_lab.sim.tokens import Recorded
from edgespec_lab.sim.world import Result

ARMS = ("off", "constant", "learnt")


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the arms are compared."""

    worker: str
    draft: str
    ratio: float
    rtt_ms: float
    prefer: str


def settings_of(config: Mapping[str, Any]) -> list[Setting]:
    """All combinations."""
    run = config["run"]
    return [
        Setting(worker, draft, ratio, rtt, prefer)
        for worker in config["workers"]
        for draft in run["drafts"]
        for ratio in run["ratio"]
        for rtt in run["rtt_ms"]
        for prefer in run["prefer"]
    ]


def measure(job: tuple[Setting, str, int], policies: Policies) -> tuple[float, int]:
    """Seconds and local passes of one arm, over so many completions."""
    setting, arm, runs = job
    config = load("phi")
    run = config["run"]
    phi: Phi = float(PHI.high) if arm == "off" else "learnt"
    worker = WorkerSpec(**config["workers"][setting.worker])
    cell = Cell(
        Arm(arm, "adaptive", worker, phi=phi, prefer=setting.prefer),  # type: ignore[arg-type]
        Recorded(setting.draft, flat_entropy=arm == "constant"),
        LinkModel(setting.rtt_ms / 1000),
        steps_at(Place(run["curve"], setting.ratio, 0.0, setting.rtt_ms), load("sweep")),
        run["tokens"],
        runs,
    )
    results: Sequence[Result] = simulate(cell, policies)
    return sum(result.seconds for result in results), sum(result.local_passes for result in results)


def phi(out: Path, simulator: Simulator, runs: int | None = None) -> dict[str, Any]:
    """A row a place: seconds and local passes of each arm relative to `off`; and their means by worker and draft."""
    config = load("phi")
    places = settings_of(config)
    jobs = [(place, arm, runs or config["run"]["runs"]) for place in places for arm in ARMS]
    found: dict[tuple[Setting, str, int], tuple[float, int]] = {}
    measured = partial(measure, policies=simulator.policies)
    for done, (job, result) in enumerate(spread(measured, jobs, simulator.processes), 1):
        found[job] = result
        simulator.progress(done, len(jobs))
    rows = [_row(place, {arm: found[place, arm, count] for _, arm, count in jobs[: len(ARMS)]}) for place in places]
    _plot(rows, out)
    return {"figure": "phi", "rows": rows, "text": text(rows)}


def _row(place: Setting, arms: Mapping[str, tuple[float, int]]) -> Row:
    """Ratios to the arm `off`."""
    seconds, passes = arms["off"]
    row: Row = {
        "worker": place.worker, "draft": place.draft, "ratio": place.ratio, "rtt_ms": place.rtt_ms,
        "prefer": place.prefer, "seconds": round(seconds, 4), "passes": passes,
    }  # fmt: skip
    for arm in ARMS[1:]:
        row[arm] = round(arms[arm][0] / seconds, 4)
        row[f"{arm} passes"] = arms[arm][1]

    return row


def text(rows: Sequence[Row]) -> str:
    """A line for each worker, draft and preference: mean ratios over ratios and round trips, the least and the most."""
    lines = [f"{'worker':24}{'draft':14}{'prefer':10}{'constant':>18}{'learnt':>18}   passes: off, constant, learnt"]
    groups = dict.fromkeys((row["worker"], row["draft"], row["prefer"]) for row in rows)
    for worker, draft, prefer in groups:
        group = [row for row in rows if (row["worker"], row["draft"], row["prefer"]) == (worker, draft, prefer)]
        cells = "".join(_cell([row[arm] for row in group]) for arm in ARMS[1:])
        passes = ", ".join(
            str(sum(row[name] for row in group)) for name in ("passes", *[f"{arm} passes" for arm in ARMS[1:]])
        )
        lines.append(f"{worker:24}{draft:14}{prefer:10}{cells}   {passes}")
    for prefer in dict.fromkeys(row["prefer"] for row in rows):
        cells = "".join(_cell([row[arm] for row in rows if row["prefer"] == prefer]) for arm in ARMS[1:])
        lines.append(f"{'all':24}{'':14}{prefer:10}{cells}")

    return "\n".join(lines)


def _cell(ratios: Sequence[float]) -> str:
    return f"{statistics.mean(ratios):8.3f} {min(ratios):4.2f}-{max(ratios):4.2f}"


def _plot(rows: Sequence[Row], out: Path) -> None:
    """The learnt arm against the round trip: a line for each worker and preference."""
    lines = [
        {"rtt_ms": rtt, "config": f"{worker}, {prefer}", "tokens": worker, "arm": prefer,
         "latency_ratio": statistics.mean(
             row["learnt"] for row in rows if (row["worker"], row["prefer"], row["rtt_ms"]) == (worker, prefer, rtt)
         )}
        for worker, prefer, rtt in dict.fromkeys((row["worker"], row["prefer"], row["rtt_ms"]) for row in rows)
    ]  # fmt: skip
    plots.lines(lines, out, "adaptive with the learnt limit / without", (("latency_ratio", "latency"),))
