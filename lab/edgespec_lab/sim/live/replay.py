"""`python -m edgespec_lab.sim replay-live`: the same answers in the simulator and over real sockets, side by side.

A ratio is to co-located k = 2 on the same answer in the same world: measured to measured, simulated to simulated. What
remains between the two ratios is what the simulator leaves out: the hosts' own time and the sockets'.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cloud_gateway.core.policies.registry import Policies
from edgespec_lab import verbs
from edgespec_lab.choices import gateway_choices
from edgespec_lab.demo.scene import progress
from edgespec_lab.link_model import LinkModel
from edgespec_lab.options import number
from edgespec_lab.sim import plots
from edgespec_lab.sim.config import load
from edgespec_lab.sim.experiment import BASE, Arm, Cell, WorkerSpec, simulate
from edgespec_lab.sim.live.gateway import Load, Reported
from edgespec_lab.sim.live.setting import Setting
from edgespec_lab.sim.live.stage import Stage
from edgespec_lab.sim.tokens import Recorded
from edgespec_lab.sim.world import Result

POLICIES = ("adaptive", "amusd", "wanspec")
TOLERANCE_POINTS = 3.0


@dataclass(frozen=True, slots=True)
class Pair:
    """One answer by the reference and by an arm, here and in the simulator."""

    base: Reported
    arm: Reported
    sim_base: Result
    sim_arm: Result
    waited: float = 0.0
    """Share of the time for which the processes' threads waited for a core."""

    @property
    def ratio(self) -> float:
        """Latency, measured."""
        return self.arm.seconds / self.base.seconds

    @property
    def sim_ratio(self) -> float:
        """Latency, simulated."""
        return self.sim_arm.seconds / self.sim_base.seconds


def arm_of(policy: str, draft: str = "") -> Arm:
    """As in figure 9, on its synthetic tokens or on those of a recorded draft; AMUSD's policy beside them."""
    config = load("wanspec-cloud")
    chain = WorkerSpec("algorithm2", config["run"]["branching"], 0.0, config["run"]["sequences"])
    if policy == "adaptive":
        return Arm("adaptive, s=16", policy, WorkerSpec("bestfirst", 4, 0.0, 16), verify_nodes=32)
    if policy == "amusd":
        return Arm("amusd", policy, chain)

    k = config["run"]["k"]
    phis = [made["phi"] for made in config["recorded"].values()]
    phi = phis[0] if draft else config["run"]["phi"]
    return Arm(f"wanspec b=1 φ={phi:g}", policy, chain, k=k, phi=phi, depth=k)


def measure(arm: Arm, setting: Setting, answers: int, done: Callable[[], None], policies: Policies) -> dict[str, Any]:
    """One row: `answers` answers by the arm and by the reference in turns, in one set of processes. One more before
    them does not count, in either world: it fills caches, and the policy learns of link, steps and drafts."""
    sim_arm = _simulated(arm, setting, answers, setting.rtt_ms, policies)
    sim_base = _simulated(BASE, setting, answers, 0.0, policies)
    pairs: list[Pair] = []
    with tempfile.TemporaryDirectory() as folder, Stage(setting, Path(folder), setting.workers) as stage:
        for seed in range(answers + 1):
            waited_s = stage.waited_s()
            began = time.perf_counter()
            base = stage.ask(Load([seed], setting.length, workers=False, policy=BASE.policy))
            found = stage.ask(Load([seed], setting.length))
            waited = (stage.waited_s() - waited_s) / (time.perf_counter() - began)
            if seed:
                pairs.append(Pair(base, found, sim_base[seed - 1], sim_arm[seed - 1], waited))
                done()
        workers = stage.end_workers()

    return _row(arm, setting, pairs, workers)


def _simulated(arm: Arm, setting: Setting, answers: int, rtt_ms: float, policies: Policies) -> list[Result]:
    """The answers that count: those after the first."""
    net = LinkModel(rtt_ms / 1000, setting.jitter_ms / 1000)
    cell = Cell(arm, setting.kind, net, setting.steps, setting.length, answers + 1)
    return simulate(cell, policies)[1:]


def _row(arm: Arm, setting: Setting, pairs: Sequence[Pair], workers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Ratios are medians over the answers; `sim_` begins the names of what was simulated."""
    arms = [pair.arm for pair in pairs]
    sims = [pair.sim_arm for pair in pairs]
    live = _ratios((p.ratio for p in pairs), (p.arm.draft_passes / p.base.draft_passes for p in pairs))
    sim = _ratios((p.sim_ratio for p in pairs), (p.sim_arm.local_passes / p.sim_base.local_passes for p in pairs))
    rounds = sum(one.passes for one in arms)
    sim_rounds = sum(one.rounds for one in sims)
    steps = sum(worker["steps"] for worker in workers)
    return {
        "rtt_ms": setting.rtt_ms,
        "config": arm.config,
        **live,
        **{f"sim_{name}": value for name, value in sim.items()},
        "latency_points": round((live["latency_ratio"] - sim["latency_ratio"]) * 100, 2),
        "offload_points": round((live["offload"] - sim["offload"]) * 100, 2),
        "accepted_per_round": round(sum(one.accepted for one in arms) / rounds, 3),
        "sim_accepted_per_round": round(sum(one.accepted for one in sims) / sim_rounds, 3),
        "gateway_passes": round(statistics.fmean(one.draft_passes for one in arms), 2),
        "sim_gateway_passes": round(statistics.fmean(one.local_passes for one in sims), 2),
        "rounds": rounds,
        "sim_rounds": sim_rounds,
        "frames_per_round": round(sum(one.frames for one in arms) / rounds, 2),
        "engine_host_us_per_round": round(sum(one.host_s for one in arms) / rounds * 1e6, 1),
        "worker_host_us_per_step": round(sum(w["steps"] * w["host_us_per_step"] for w in workers) / max(steps, 1), 1),
        "late_us": arms[-1].late_us,
        "answers": len(pairs),
        "waited_share": round(max(pair.waited for pair in pairs), 4),
    }


def _ratios(latency: Iterable[float], passes: Iterable[float]) -> dict[str, float]:
    draft_ratio = round(statistics.median(passes), 4)
    ratio = round(statistics.median(latency), 4)
    return {"latency_ratio": ratio, "draft_ratio": draft_ratio, "offload": round(1 - draft_ratio, 4)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m edgespec_lab.sim replay-live`."""
    rtt = number(float, 0, 2000)
    step = number(float, 0.001, 10_000)
    parser.add_argument("--rtt-ms", type=rtt, nargs="+", default=[15.0], help="round trips (default: 15)")
    parser.add_argument("--policy", choices=POLICIES, nargs="+", default=["wanspec", "adaptive"])
    parser.add_argument("--target-ms", type=step, help="a target pass (default: as the papers' settings have it)")
    parser.add_argument("--draft-ms", type=step, help="a draft step, here and at the worker (default: likewise)")
    parser.add_argument("--jitter-ms", type=number(float, 0, 1000), default=0.0, help="mean extra delay, each way")
    parser.add_argument("--draft", default="", help="a draft of the shipped recording (default: synthetic tokens)")
    parser.add_argument("--answers", type=number(int, 1, 1000), default=20)
    parser.add_argument("--tokens", type=number(int, 1, 2000), default=100, help="tokens of an answer")
    parser.add_argument("--json", type=Path, default=Path("replay-live.json"), help="output; plots go beside it")


def run(options: argparse.Namespace) -> int:
    """Measures, prints and writes. Raises ConfigError, and RigError where a process fails."""
    policies = gateway_choices(BASE.policy, *options.policy).policies
    if options.draft:
        Recorded(options.draft).make(0, 1)  # says what is wrong before any process is started
    config = load("wanspec-cloud")
    made = {"target_ms": config["steps"]["verify_ms"], "draft_ms": config["steps"]["draft_ms"]}
    verify, draft = (
        {1: value} if (value := getattr(options, name)) else {int(rows): ms for rows, ms in curve.items()}
        for name, curve in made.items()
    )
    setting = Setting(verify, draft, config["tokens"], options.draft, options.tokens)
    cells = [(arm_of(name, options.draft), rtt) for rtt in options.rtt_ms for name in options.policy]
    rows = []
    with progress(verbs.console()) as bar:
        task = bar.add_task("replay-live", total=len(cells) * options.answers)
        for arm, rtt in cells:
            bar.update(task, description=f"{arm.config} at {rtt:g} ms")
            at = setting.of_arm(arm, rtt, options.jitter_ms)
            rows.append(measure(arm, at, options.answers, lambda: bar.advance(task), policies))
    report = {"setting": msgspec.to_builtins(setting), "tolerance_points": TOLERANCE_POINTS, "rows": rows}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    verbs.write_json(options.json, report)
    steps = f"{setting.verify_ms[1]:g} / {setting.draft_ms[1]:g} ms"
    plots.pairs(rows, options.json, f"Simulated and over real sockets, steps of {steps}", PANELS)
    verbs.console().print(verbs.table([{head: f"{row[name]:{form}}" for head, name, form in COLUMNS} for row in rows]))
    print(f"written: {options.json}, {options.json.with_suffix('.png')}, {options.json.with_suffix('.svg')}")
    return 0


PANELS = (
    ("latency_ratio", "latency / co-located k = 2"),
    ("offload", "offload share (1 - draft passes / co-located k = 2)"),
    ("accepted_per_round", "candidates accepted a round"),
)
COLUMNS = (
    ("", "config", ""),
    ("RTT", "rtt_ms", "g"),
    ("latency", "latency_ratio", ".3f"),
    ("sim", "sim_latency_ratio", ".3f"),
    ("points", "latency_points", "+.1f"),
    ("offload", "offload", ".3f"),
    ("sim ", "sim_offload", ".3f"),
    ("points ", "offload_points", "+.1f"),
    ("accepted", "accepted_per_round", ".2f"),
    ("sim  ", "sim_accepted_per_round", ".2f"),
    ("host us a round", "engine_host_us_per_round", ".0f"),
    ("a worker's step", "worker_host_us_per_step", ".0f"),
    ("waited", "waited_share", ".0%"),
)
"""Head, name and format of the table's columns: candidates accepted are those of a round."""
