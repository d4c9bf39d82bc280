"""All policies against each other, over round trips, losses, and synthetic and recorded tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edgespec.lab.link_model import LinkModel
from edgespec.lab.sim.world import Steps
from tools.sim import plots
from tools.sim.config import load, steps_of, tokens_of
from tools.sim.experiment import Arm, Cell, Kind, Progress, Row, WorkerSpec, rows_of
from tools.sim.recording import SHIPPED, Recorded

PREFERENCES = ("latency", "balanced", "offload")
ORACLE = "oracle, no gateway drafts"
# What an earlier study found possible with match 0.8 and s = 16: round trip -> (latency, most passes).
FAR = (150, 200, 300)
ANY = 9.0
MUST = {10: (0.80, 0.05), 20: (0.90, 0.30), 30: (0.92, 0.30), 50: (1.00, 0.50), 70: (1.02, ANY), 100: (1.02, ANY)}
MUST |= dict.fromkeys(FAR, (1.02, ANY))
AMBITIOUS = {10: (0.72, 0.0), 20: (0.80, 0.0), 30: (0.85, 0.30), 50: (0.92, 0.50), 70: (1.00, 0.55), 100: (1.00, 0.62)}
AMBITIOUS |= dict.fromkeys(FAR, (1.00, 0.65))
LATENCY_FIRST = (0.85, 0.75)
SLOWDOWN = 1.02
"""Most that an answer may take, relative to co-located k = 2."""
GAPS = {"adaptive, no gateway drafts": ORACLE} | {f"adaptive {prefer}": f"oracle {prefer}" for prefer in PREFERENCES}
STUDY_GAP = {0: 0.03, 10: 0.08, 20: 0.14, 30: 0.19, 50: 0.28, 70: 0.32, 100: 0.34}
"""The study's distance from its policy without gateway drafts to its oracle."""


def arms(want: dict[str, Any]) -> Iterator[tuple[str, Arm]]:
    """Group for the plot, and arm."""
    s, width, nodes = want["sequences"], want["width"], want["verify_nodes"]
    best_first = WorkerSpec("bestfirst", width, 0.0, s)
    yield "plain", Arm("plain", "plain")
    for k in (1, 2, 3, 4, 5):
        yield "co-located chain", Arm(f"co-located chain k={k}", "colocated", k=k)
        yield "co-located tree", Arm(f"co-located tree k={k}", "colocated-tree", k=k, verify_nodes=nodes)
    for phi in want["phi"]:
        yield "wanspec", Arm(f"wanspec φ={phi}", "wanspec", WorkerSpec(), phi=phi)
    yield "wanspec, our worker", Arm("wanspec φ=0.5, s=16", "wanspec", best_first, phi=0.5, verify_nodes=nodes)
    for prefer in PREFERENCES:
        yield "adaptive", Arm(f"adaptive {prefer}", "adaptive", best_first, verify_nodes=nodes, prefer=prefer)  # type: ignore[arg-type]
    yield "adaptive", Arm("adaptive, no gateway drafts", "adaptive", best_first, verify_nodes=nodes, local=False)
    oracle = WorkerSpec("oracle", width, 0.0, 1)
    yield "oracle", Arm(ORACLE, "adaptive", oracle, verify_nodes=nodes, local=False)
    for prefer in PREFERENCES:
        yield "oracle", Arm(f"oracle {prefer}", "adaptive", oracle, verify_nodes=nodes, prefer=prefer)  # type: ignore[arg-type]


def pareto(out: Path, processes: int, progress: Progress, runs: int | None = None) -> dict[str, Any]:
    """The rows, and what the targets, the dominance rule and the oracle say of them."""
    config = load("pareto")
    want, steps = config["run"], steps_of(config)
    kinds: dict[str, Kind] = {"iid": tokens_of(config)}
    if SHIPPED.exists():
        kinds |= {f"recorded {name}": Recorded(name) for name in want["recorded"]}
    cells = cells_of(want, kinds, steps, runs or want["runs"])
    rows = rows_of(cells, processes, progress)
    synthetic = [row for row in rows if row["tokens"] == "iid" and not row["loss"]]
    panels = [(f"{rtt} ms", [row for row in synthetic if row["rtt_ms"] == rtt]) for rtt in want["rtt_ms"]]
    plots.grid(panels, out, "Latency against gateway draft passes, i.i.d. tokens, no loss")
    return {"figure": "pareto", "rows": rows, "verdict": verdict(rows), "text": text(rows)}


def cells_of(want: dict[str, Any], kinds: dict[str, Kind], steps: Steps, runs: int) -> list[Cell]:
    """Every arm at every round trip and loss, for every kind of tokens."""
    return [
        Cell(
            arm,
            kind,
            LinkModel(rtt / 1000, loss=loss),
            steps,
            want["tokens"],
            runs,
            labels={"tokens": name, "loss": loss, "group": group},
        )
        for name, kind in kinds.items()
        for loss in want["loss"]
        for group, arm in arms(want)
        for rtt in want["rtt_ms"]
    ]


def verdict(rows: Sequence[Row]) -> dict[str, Any]:
    """Targets, dominance and the distance to the oracle, for i.i.d. tokens without loss unless said otherwise."""
    clean = [row for row in rows if row["tokens"] == "iid" and not row["loss"]]
    at = {(row["config"], row["rtt_ms"]): row for row in clean}
    rtts = sorted({row["rtt_ms"] for row in clean})
    latency = [at["adaptive latency", rtt]["latency_ratio"] for rtt in rtts]
    ours = [row for row in rows if row["group"] == "adaptive" and "no gateway" not in row["config"]]
    return {
        "must_missed": missed(at, MUST),
        "ambitious_missed": missed(at, AMBITIOUS),
        "latency_first_worst": max(latency),
        "latency_first_limits": LATENCY_FIRST,
        "slowest": max(ours, key=lambda row: float(row["latency_ratio"])),
        "over_102": [_where(row) for row in ours if row["latency_ratio"] > SLOWDOWN],
        "dominated": dominated(rows),
        "oracle_gap": {
            ours: {rtt: round(at[ours, rtt]["latency_ratio"] - at[theirs, rtt]["latency_ratio"], 3) for rtt in rtts}
            for ours, theirs in GAPS.items()
        },
        "study_gap": STUDY_GAP,
    }


def missed(at: dict[tuple[str, float], Row], targets: dict[int, tuple[float, float]]) -> list[int]:
    """Round trips at which no preference of `adaptive` reaches both the latency and the passes of the target."""

    def met(rtt: int) -> bool:
        rows = [at[f"adaptive {prefer}", rtt] for prefer in PREFERENCES]
        wanted, passes = targets[rtt]
        return any(row["latency_ratio"] <= wanted and row["draft_ratio"] <= passes + 0.005 for row in rows)

    return [rtt for rtt in targets if (f"adaptive {PREFERENCES[0]}", rtt) in at and not met(rtt)]


def dominated(rows: Sequence[Row]) -> list[str]:
    """Rows of `adaptive` than which some phi of `wanspec` with the paper's worker is better in one measure and not
    worse in the other. `wanspec` with the worker of `adaptive` is not compared."""
    found = []
    for mine in rows:
        if mine["group"] != "adaptive" or "no gateway" in mine["config"]:
            continue
        for other in rows:
            same = all(mine[key] == other[key] for key in ("rtt_ms", "tokens", "loss"))
            if same and other["group"] == "wanspec" and _dominates(other, mine):
                found.append(f"{_where(mine)} by {other['config']}")
    return found


def _where(row: Row) -> str:
    return f"{row['config']} ({row['tokens']}, {row['rtt_ms']:g} ms, loss {row['loss']:g}: {row['latency_ratio']:.3f})"


def _dominates(a: Row, b: Row) -> bool:
    pair = [(a[key], b[key]) for key in ("latency_ratio", "draft_ratio")]
    return all(x <= y for x, y in pair) and any(x < y for x, y in pair)


def text(rows: Sequence[Row]) -> str:
    """A table per kind of tokens and loss: latency / passes."""
    parts = []
    for tokens, loss in dict.fromkeys((row["tokens"], row["loss"]) for row in rows):
        chosen = [row for row in rows if (row["tokens"], row["loss"]) == (tokens, loss)]
        rtts = sorted({row["rtt_ms"] for row in chosen})
        parts.append(f"\n{tokens}, loss {loss:g}: latency / gateway draft passes, relative to co-located k = 2")
        parts.append(f"{'':28}" + "".join(f"{rtt:>10g}" for rtt in rtts))
        for config in dict.fromkeys(row["config"] for row in chosen):
            line = {row["rtt_ms"]: row for row in chosen if row["config"] == config}
            cells = (f"{line[rtt]['latency_ratio']:.2f}/{line[rtt]['draft_ratio']:.2f}" for rtt in rtts)
            parts.append(f"{config:28}" + "".join(f"{cell:>10}" for cell in cells))
    return "\n".join(parts)
