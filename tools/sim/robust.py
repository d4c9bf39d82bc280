"""How policy `adaptive` stands where the study's assumptions do not hold: `python -m tools.sim robust`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgespec.lab.link_model import LinkModel
from edgespec.lab.sim.world import Curve, Steps
from tools.sim import plots
from tools.sim.config import curve, load, steps_of, tokens_of
from tools.sim.experiment import Arm, Cell, Progress, WorkerSpec, rows_of
from tools.sim.pareto import PREFERENCES, SLOWDOWN, text
from tools.sim.process import Iid

Case = tuple[str, Iid, Steps, dict[str, float], WorkerSpec | None]
"""Name, tokens, step times, what the link has besides a round trip, and the worker where it is another one."""


def cases(config: dict[str, Any]) -> Iterator[Case]:
    """Each breaks one assumption."""
    kind, steps, want = tokens_of(config), steps_of(config), config["robust"]
    yield "as assumed", kind, steps, {}, None
    for match in want["match"]:
        yield f"match {match}", replace(kind, match=match), steps, {}, None
    yield "confidence without information", replace(kind, informative=0.0), steps, {}, None
    yield "worse ranks", replace(kind, rank_decay=want["rank_decay"]), steps, {}, None
    for ms in want["ms_per_node"]:
        verify = Curve({1: steps.verify(1), 65: steps.verify(1) + 64 * ms / 1000})
        yield f"{ms} ms per node", kind, replace(steps, verify=verify), {}, None
    full = curve(want["draft_ms_full_price"])
    yield (
        "drafts at full price",
        kind,
        Steps(steps.verify, full, full, leaves=1),
        {},
        WorkerSpec("bestfirst", 4, 0.0, 1),
    )
    yield "slow worker", kind, replace(steps, worker=curve(want["slow_worker_ms"])), {}, None
    yield "silent worker", kind, replace(steps, worker=Curve({1: 3600.0})), {}, None
    for ms in want["jitter_ms"]:
        yield f"jitter {ms} ms", kind, steps, {"jitter_s": ms / 1000}, None
    demo = want["demo"]
    times = curve(demo["verify_ms"]), curve(demo["draft_ms"]), curve(demo["draft_ms"])
    backlog = {"catch_up_s": demo["catch_up_ms"] / 1000, "unread": demo["unread"], "leaves": 1}
    chains = WorkerSpec("bestfirst", 4, 0.0, 1)
    yield "the demo's step times", replace(kind, match=demo["match"]), Steps(*times, **backlog), {}, chains
    yield "loss 20 %", kind, steps, {"loss": 0.2}, None


def robust(out: Path, processes: int, progress: Progress, runs: int | None = None) -> dict[str, Any]:
    """One row per case, preference and round trip, and which of them are slower than co-located k = 2."""
    config = load("pareto")
    want = config["run"]
    usual = WorkerSpec("bestfirst", want["width"], 0.0, want["sequences"])
    cells = [
        Cell(
            Arm(f"{name}: {prefer}", "adaptive", worker or usual, verify_nodes=want["verify_nodes"], prefer=prefer),  # type: ignore[arg-type]
            kind,
            LinkModel(rtt / 1000, **net),
            steps,
            want["tokens"],
            runs or want["runs"],
            labels={"tokens": "iid", "loss": 0.0, "arm": name},
        )
        for name, kind, steps, net, worker in cases(config)
        for prefer in PREFERENCES
        for rtt in config["robust"]["rtt_ms"]
    ]
    rows = rows_of(cells, processes, progress)
    slow = [f"{row['config']} at {row['rtt_ms']:g} ms" for row in rows if row["latency_ratio"] > SLOWDOWN]
    measures = (("latency_ratio", "latency / co-located k = 2"), ("draft_ratio", "gateway draft passes"))
    balanced = [row for row in rows if row["config"].endswith("balanced")]
    plots.lines(balanced, out, "adaptive, balanced, where an assumption does not hold", measures)
    return {"figure": "robust", "rows": rows, "slower": slow, "text": text(rows)}
