"""WANSpec's figures 7, 8 and 9 from the policies that ship, on the paper's kind of tokens and on recorded ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cloud_gateway.core.policies.policy import Action, Costs, LinkView, Outcome, Policy
from cloud_gateway.core.policies.registry import Policies
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec_lab.link_model import LinkModel
from edgespec_lab.sim import plots
from edgespec_lab.sim.config import load, steps_of, tokens_of
from edgespec_lab.sim.experiment import BASE, Arm, Cell, Kind, Row, Simulator, WorkerSpec, rows_of
from edgespec_lab.sim.tokens import Iid, Recorded
from edgespec_lab.sim.world import Steps, run

NEVER_SKIP = -1.0
"""phi below every entropy: the controller always takes the worker to be on another path."""
HELPS = 0.98
"""A configuration helps while its latency ratio is below this."""
IID = "i.i.d."
PERSISTENT = "synthetic, persistent"
"""The synthetic tokens' names in figures 7 and 9; their configurations bear the paper's names alone."""
LATENCY = ("latency_ratio", "latency")
PASSES = ("draft_ratio", "draft passes at the gateway")


def figure7(out: Path, simulator: Simulator, runs: int | None = None) -> dict[str, Any]:
    """Latency and controller draft passes against the round trip; each heuristic added in turn."""
    config = load("wanspec")
    want = config["run"]
    steps = steps_of(config)
    cells = [
        Cell(
            arm, kind, LinkModel(rtt / 1000), steps, want["tokens"], runs or want["runs"],
            labels={"tokens": tokens, "arm": step}, base=Arm(f"colocated k={arm.k}", "colocated", k=arm.k),
        )
        for tokens, kind, settings in _processes(config)
        for step, arm in ablation("" if tokens == IID else f"{tokens}: ", want | settings)
        for rtt in want["rtt_ms"]
    ]  # fmt: skip
    rows = rows_of(cells, simulator)
    plots.lines(rows, out, "WANSpec figure 7: relative to co-located decoding with the same k", (LATENCY, PASSES))
    return {"figure": "7", "rows": rows, "stops_helping_ms": stops_helping(rows)}


def _processes(config: Mapping[str, Any]) -> Iterator[tuple[str, Kind, Mapping[str, Any]]]:
    """What figure 7 is made for: a name, a kind of tokens, and the settings that differ from [run]."""
    yield IID, tokens_of(config), {}
    k = config["run"]["other_k"]
    yield f"{IID}, k={k}", tokens_of(config), {"k": k}
    for name, made in config["recorded"].items():
        yield name, recorded(made), made


def recorded(made: Mapping[str, Any]) -> Recorded:
    """A table of the configuration: `draft`, and `shuffled` where single positions are drawn."""
    return Recorded(made["draft"], shuffled=made.get("shuffled", False))


def ablation(prefix: str, want: Mapping[str, Any]) -> list[tuple[str, Arm]]:
    """The four configurations of section 5.2. A target step yields 1 to k + 1 tokens, as section 4.3 has it."""
    s, k, theta, phi = (want[key] for key in ("sequences", "k", "theta", "phi"))
    chain = WorkerSpec("algorithm2", 1, 0.0, 1)
    wide = WorkerSpec(theta=0.0, sequences=s)
    narrow = WorkerSpec(theta=theta, sequences=s)
    steps = [
        ("b=1", chain, NEVER_SKIP),
        ("b=2", wide, NEVER_SKIP),
        (f"b=2 θ={theta}", narrow, NEVER_SKIP),
        (f"b=2 θ={theta} φ={phi}", narrow, phi),
    ]
    return [(name, Arm(prefix + name, "wanspec", worker, k=k, phi=skip, depth=k)) for name, worker, skip in steps]


def stops_helping(rows: Sequence[Row]) -> dict[str, float | None]:
    """For every configuration the round trip (ms) from which its latency ratio stays above HELPS, interpolated."""
    found: dict[str, float | None] = {}
    for config in dict.fromkeys(row["config"] for row in rows):
        line = sorted((row["rtt_ms"], row["latency_ratio"]) for row in rows if row["config"] == config)
        helping = [i for i, (_, ratio) in enumerate(line) if ratio <= HELPS]
        if not helping or helping[-1] == len(line) - 1:
            found[config] = None if helping else line[0][0]
            continue
        (rtt, ratio), (later, worse) = line[helping[-1]], line[helping[-1] + 1]
        found[config] = round(rtt + (HELPS - ratio) / (worse - ratio) * (later - rtt), 1)

    return found


def figure8(out: Path, simulator: Simulator, runs: int | None = None) -> dict[str, Any]:
    """Sweep of phi per round trip."""
    config = load("wanspec")
    want = config["run"]
    steps = steps_of(config)
    kind = tokens_of(config)
    worker = WorkerSpec(theta=want["theta"], sequences=want["sequences"])
    cells = [
        Cell(
            Arm(f"φ={phi:.3f}", "wanspec", worker, k=want["k"], phi=phi, depth=want["k"]),
            kind,
            LinkModel(rtt / 1000),
            steps,
            want["tokens"],
            runs or want["sweep_runs"],
            labels={"phi": phi, "group": f"{rtt} ms"},
        )
        for rtt in want["sweep_rtt_ms"]
        for phi in sweep(kind, want["phi_values"])
    ]
    rows = rows_of(cells, simulator)
    plots.pareto(rows, out, "WANSpec figure 8: 100 values of φ per round trip", joined={row["group"] for row in rows})
    shown = sweep(kind, want["phi_values"])[:: max(want["phi_values"] // 10, 1)]
    text = summary([row for row in rows if row["phi"] in shown])
    return {"figure": "8", "rows": rows, "fewest_passes": fewest_passes(rows), "text": text}


def sweep(kind: Iid, count: int) -> list[float]:
    """Values of phi from the smallest to the largest entropy of the process, by quantile."""
    entropies = np.concatenate([kind.make(seed, 1000).target_entropies for seed in range(20)])
    return [round(float(value), 4) for value in np.quantile(entropies, np.linspace(0, 1, count))]


def fewest_passes(rows: Sequence[Row]) -> dict[str, float]:
    """For every round trip the smallest share of gateway draft passes at which latency is within 5 % of the least."""
    found = {}
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [row for row in rows if row["group"] == group]
        least = min(row["latency_ratio"] for row in mine)
        found[group] = min(row["draft_ratio"] for row in mine if row["latency_ratio"] <= least + 0.05)
    return found


def figure9(out: Path, simulator: Simulator, runs: int | None = None) -> dict[str, Any]:
    """The cloud deployment: b = 1 at the measured step times; `adaptive` beside it."""
    config = load("wanspec-cloud")
    want = config["run"]
    steps = steps_of(config)
    chain = WorkerSpec(branching=want["branching"], theta=0.0, sequences=want["sequences"])
    kinds: dict[str, tuple[Kind, float]] = {PERSISTENT: (tokens_of(config), want["phi"])}
    kinds |= {name: (recorded(made), made["phi"]) for name, made in config["recorded"].items()}
    cells = [
        Cell(
            arm, kind, _jittery(rtt, want), steps, want["tokens"], runs or want["runs"],
            labels={"tokens": tokens, "arm": arm.config.removeprefix(f"{tokens}: ")},
        )
        for tokens, (kind, phi) in kinds.items()
        for arm in _deployed("" if tokens == PERSISTENT else f"{tokens}: ", chain, phi, want["k"])
        for rtt in want["rtt_ms"]
    ]  # fmt: skip
    rows = rows_of(cells, simulator)
    plots.lines(
        rows,
        out,
        "WANSpec figure 9 (steps of 23.4 and 7.5 ms, jitter): relative to co-located k = 2",
        (LATENCY, PASSES),
    )
    match = {
        name: match_statistics(kind, steps, want["tokens"], 100, simulator.policies)
        for name, (kind, _) in kinds.items()
    }
    return {"figure": "9", "rows": rows, "match": match}


def _deployed(prefix: str, chain: WorkerSpec, phi: float, k: int) -> list[Arm]:
    return [
        Arm(f"{prefix}wanspec b=1 φ={phi}", "wanspec", chain, k=k, phi=phi, depth=k),
        Arm(f"{prefix}adaptive, s=16", "adaptive", WorkerSpec("bestfirst", 4, 0.0, 16), verify_nodes=32),
    ]


def _jittery(rtt_ms: float, want: dict[str, Any]) -> LinkModel:
    return LinkModel(rtt_ms / 1000, want["jitter_ms"][str(rtt_ms)] / 1000)


class _Counting(Policy):
    """Co-located k = 2 that counts how far each batch of two was right."""

    name = "counting"

    def __init__(self, inner: Policy) -> None:
        self.inner = inner
        self.batches = 0
        self.first = 0
        self.second = 0

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        return self.inner.decide(tree, link, costs, now)

    def reads_prompt(self, costs: Costs, *, worker: bool) -> bool:
        return self.inner.reads_prompt(costs, worker=worker)

    def verified(self, outcome: Outcome, now: float) -> None:
        self.batches += 1
        self.first += outcome.emitted > 1
        self.second += outcome.emitted > 2


def match_statistics(kind: Kind, steps: Steps, tokens: int, runs: int, policies: Policies) -> dict[str, float]:
    """Section 5.4: how often the first token of a batch of two matches, and the second where the first did."""
    counting: Sequence[_Counting] = [_Counting(BASE.controller(policies)) for _ in range(runs)]
    for seed, policy in enumerate(counting):
        run(policy, [], kind.make(seed, tokens), LinkModel(0.0), steps, tokens, seed)
    batches, first, second = (sum(getattr(c, name) for c in counting) for name in ("batches", "first", "second"))
    return {
        "first": round(first / batches, 4),
        "second_given_first": round(second / first, 4),
        "of_all_drafted": round((first + second) / (2 * batches), 4),
    }


def summary(rows: Sequence[Row]) -> str:
    """The rows as a table: one line per configuration, one column per round trip."""
    rtts = list(dict.fromkeys(row["rtt_ms"] for row in rows))
    configs = list(dict.fromkeys(row["config"] for row in rows))
    width = max(len(config) for config in configs)
    cells = {(row["config"], row["rtt_ms"]): f"{row['latency_ratio']:.2f}/{row['draft_ratio']:.2f}" for row in rows}
    head = " " * width + "".join(f"{rtt:>11g}" for rtt in rtts)
    return "\n".join(
        [
            "latency / draft passes at the gateway, both ÷ co-located, by round trip in ms",
            head,
            *(f"{c:{width}}" + "".join(f"{cells.get((c, rtt), ''):>11}" for rtt in rtts) for c in configs),
        ]
    )
