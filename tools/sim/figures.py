"""WANSpec's figures 7, 8 and 9 from the policies that ship."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cloud_gateway.core.actions import Action, Costs, LinkView, Outcome
from cloud_gateway.core.controller import Colocated
from cloud_gateway.core.merge import CandidateTree, Merged
from cloud_gateway.sim.network import Net
from cloud_gateway.sim.world import run
from tools.sim import plots
from tools.sim.config import load, steps_of, tokens_of
from tools.sim.experiment import Arm, Cell, Progress, Row, WorkerSpec, rows_of
from tools.sim.process import Iid

NEVER_SKIP = -1.0
"""phi below every entropy: the controller always takes the worker to be on another path."""
LATENCY = ("latency_ratio", "latency / co-located k = 2")
PASSES = ("draft_ratio", "gateway draft passes / co-located k = 2")


def figure7(out: Path, processes: int, progress: Progress, runs: int | None = None) -> dict[str, Any]:
    """Latency and controller draft passes against the round trip; each heuristic added in turn."""
    config = load("wanspec")
    want, steps, kind = config["run"], steps_of(config), tokens_of(config)
    theta, s = want["theta"], want["sequences"]
    arms = [
        Arm("b=1", "wanspec", WorkerSpec(branching=1, theta=0.0, sequences=1), phi=NEVER_SKIP),
        Arm("b=2", "wanspec", WorkerSpec(theta=0.0, sequences=s), phi=NEVER_SKIP),
        Arm(f"b=2 θ={theta}", "wanspec", WorkerSpec(theta=theta, sequences=s), phi=NEVER_SKIP),
        Arm(f"b=2 θ={theta} φ={want['phi']}", "wanspec", WorkerSpec(theta=theta, sequences=s), phi=want["phi"]),
    ]
    cells = [
        Cell(arm, kind, Net(rtt / 1000), steps, want["tokens"], runs or want["runs"])
        for arm in arms
        for rtt in want["rtt_ms"]
    ]
    rows = rows_of(cells, processes, progress)
    plots.lines(rows, out, "WANSpec figure 7, from the shipped policies", (LATENCY, PASSES))
    return {"figure": "7", "rows": rows}


def figure8(out: Path, processes: int, progress: Progress, runs: int | None = None) -> dict[str, Any]:
    """Sweep of phi per round trip."""
    config = load("wanspec")
    want, steps, kind = config["run"], steps_of(config), tokens_of(config)
    worker = WorkerSpec(theta=want["theta"], sequences=want["sequences"])
    cells = [
        Cell(
            Arm(f"φ={phi:.3f}", "wanspec", worker, phi=phi),
            kind,
            Net(rtt / 1000),
            steps,
            want["tokens"],
            runs or want["sweep_runs"],
            labels={"phi": phi, "group": f"{rtt} ms"},
        )
        for rtt in want["sweep_rtt_ms"]
        for phi in sweep(kind, want["phi_values"])
    ]
    rows = rows_of(cells, processes, progress)
    plots.pareto(rows, out, "WANSpec figure 8: 100 values of φ per round trip", joined={row["group"] for row in rows})
    return {"figure": "8", "rows": rows}


def sweep(kind: Iid, count: int) -> list[float]:
    """Values of phi from the smallest to the largest entropy of the process, by quantile."""
    entropies = np.concatenate([kind.make(seed, 1000).target_entropies for seed in range(20)])
    return [round(float(value), 4) for value in np.quantile(entropies, np.linspace(0, 1, count))]


def figure9(out: Path, processes: int, progress: Progress, runs: int | None = None) -> dict[str, Any]:
    """The cloud deployment: b = 1 at the measured step times; `adaptive` beside it."""
    config = load("wanspec-cloud")
    want, steps, kind = config["run"], steps_of(config), tokens_of(config)
    chain = WorkerSpec(branching=want["branching"], theta=0.0, sequences=want["sequences"])
    arms = [
        Arm("wanspec b=1", "wanspec", chain, phi=want["phi"]),
        Arm("adaptive, s=16", "adaptive", WorkerSpec("bestfirst", 4, 0.0, 16), verify_nodes=32),
    ]
    cells = [
        Cell(arm, kind, _jittery(rtt, want), steps, want["tokens"], runs or want["runs"])
        for arm in arms
        for rtt in want["rtt_ms"]
    ]
    rows = rows_of(cells, processes, progress)
    plots.lines(rows, out, "WANSpec figure 9: 23.4 / 7.5 ms, with jitter", (LATENCY, PASSES))
    return {"figure": "9", "rows": rows, "match": match_statistics(kind, want["tokens"], 200)}


def _jittery(rtt_ms: float, want: dict[str, Any]) -> Net:
    return Net(rtt_ms / 1000, want["jitter_ms"][str(rtt_ms)] / 1000)


class _Counting:
    """Co-located k = 2 that counts how far each batch of two was right."""

    name, fallbacks, drafts_from_start = "colocated", 0, True

    def __init__(self) -> None:
        self.inner, self.batches, self.first, self.second = Colocated(k=2), 0, 0, 0

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        return self.inner.decide(tree, link, costs, now)

    def received(self, merged: Merged, now: float) -> None:
        """No worker."""

    def verified(self, outcome: Outcome, now: float) -> None:
        self.batches += 1
        self.first += outcome.emitted > 1
        self.second += outcome.emitted > 2


def match_statistics(kind: Iid, tokens: int, runs: int) -> dict[str, float]:
    """Section 5.4: how often the first token of a batch of two matches, and the second where the first did."""
    counting: Sequence[_Counting] = [_Counting() for _ in range(runs)]
    steps = steps_of(load("wanspec-cloud"))
    for seed, policy in enumerate(counting):
        run(policy, None, kind.make(seed, tokens), Net(0.0), steps, tokens, seed)
    batches, first, second = (sum(getattr(c, name) for c in counting) for name in ("batches", "first", "second"))
    return {
        "first": round(first / batches, 4),
        "second_given_first": round(second / first, 4),
        "of_all_drafted": round((first + second) / (2 * batches), 4),
    }


def summary(rows: Sequence[Row]) -> str:
    """The rows as a table: one line per configuration, latency / passes per round trip."""
    rtts = list(dict.fromkeys(row["rtt_ms"] for row in rows))
    configs = list(dict.fromkeys(row["config"] for row in rows))
    width = max(len(config) for config in configs)
    cells = {(row["config"], row["rtt_ms"]): f"{row['latency_ratio']:.2f}/{row['draft_ratio']:.2f}" for row in rows}
    head = " " * width + "".join(f"{rtt:>11g}" for rtt in rtts)
    return "\n".join(
        [head, *(f"{c:{width}}" + "".join(f"{cells.get((c, rtt), ''):>11}" for rtt in rtts) for c in configs)]
    )
