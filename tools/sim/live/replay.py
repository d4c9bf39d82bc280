"""`python -m tools.sim replay-live`: the same answers in the simulator and over real sockets, side by side.

A ratio is to co-located k = 2 on the same answer in the same world: measured to measured, simulated to simulated. What
remains between the two ratios is what the simulator leaves out: the hosts' own time and the sockets'.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cloud_gateway.links.paired import PairedWorkers
from edgespec.core.errors import ConfigError
from edgespec.core.protocol.messages import MAX_SHARES
from edgespec.lab.link_model import LinkModel
from edgespec.lab.rig import Processes, RigError, module, waited_s
from edgespec.lab.sim.world import Curve, Result, Steps
from edgespec.shared.paired import PairedGateways
from edgespec.shared.server_keys import ServerKeyStore
from tools import verbs
from tools.options import number
from tools.sim import plots
from tools.sim.config import load
from tools.sim.experiment import BASE, Arm, Cell, WorkerSpec, simulate
from tools.sim.live.gateway import Asked, Reported
from tools.sim.live.setting import Setting
from tools.sim.recording import Recorded
from tools.sim.workers import shared


class Stage:
    """One setting's processes. Use as a context manager: leaving it ends them."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        """`folder` takes keys, the setting and logs."""
        self.setting, self._folder = setting, folder
        self._processes = Processes(folder)
        self._workers = [f"worker-{number}" for number in range(1, setting.workers + 1)]

    def __enter__(self) -> Stage:
        self._folder.mkdir(parents=True, exist_ok=True)
        self.setting.write(self._folder / "setting.json")
        try:
            self._start_all()
        except BaseException:  # Ctrl-C too: `with` does not leave what was not entered, and what runs must end
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end_workers()
        self._processes.stop("gateway", sig=None)  # it ends with its standard input
        self._processes.stop("proxy")

    def _start_all(self) -> None:
        """Pairing is skipped: each side's list gets the other's keys."""
        setting, written = self.setting, str(self._folder / "setting.json")
        gateway, *workers = (ServerKeyStore(self._folder / name) for name in ("gateway", *self._workers))
        for name, worker in zip(self._workers, workers, strict=True):
            PairedWorkers(gateway.folder).add(worker.identity().public, name)
        port = self._start("gateway", ["tools.sim.live.gateway", written, str(self._folder / "gateway")])["port"]
        link = ["--rtt-ms", str(setting.rtt_ms), "--jitter-ms", str(setting.jitter_ms)]
        proxy = self._start("proxy", ["edgespec.lab.wan", "--to", f"127.0.0.1:{port}", *link])
        address = f"wss://127.0.0.1:{proxy}"
        spki = gateway.tls_identity().spki_hash
        for name, worker in zip(self._workers, workers, strict=True):
            PairedGateways(worker.folder).add(gateway.identity().public, spki, "replay", address, 1)
            self._start(name, ["tools.sim.live.worker", written, address, str(self._folder / name)], wait=False)

    def ask(self, seed: int, policy: str, *, worker: bool) -> Reported:
        """One answer. Raises RigError, also where its tokens are not the process's."""
        self._processes.say("gateway", msgspec.json.encode(Asked(seed, policy, worker)))
        reported = msgspec.json.decode(self._processes.line("gateway"), type=Reported)
        if not reported.right:
            raise RigError(f"Policy {policy} gave other tokens for answer {seed} than the target process says.")
        return reported

    def end_workers(self) -> list[dict[str, Any]]:
        """Ends the workers; returns what each prints of its steps, nothing for one that prints nothing."""
        outputs = [self._processes.stop(name).splitlines() for name in self._workers]
        return [dict(msgspec.json.decode(output[-1])) for output in outputs if output]

    def waited_s(self) -> float:
        """How long the processes' threads have waited for a core so far."""
        return waited_s(self._processes.pids())

    def _start(self, name: str, own: Sequence[str], *, wait: bool = True) -> Any:
        self._processes.start(name, [*module(own[0]), *own[1:]], piped=True)
        return msgspec.json.decode(self._processes.line(name)) if wait else None


POLICIES = ("adaptive", "amusd", "wanspec")
DISTURBED = 0.03
"""An answer is left out when our threads waited for a core for more than this share of its time."""
TOLERANCE_POINTS = 3.0


@dataclass(frozen=True, slots=True)
class Pair:
    """One answer by the reference and by an arm, here and in the simulator."""

    base: Reported
    arm: Reported
    sim_base: Result
    sim_arm: Result
    waited: float
    """Share of the time for which our threads waited for a core."""

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
    k, phis = config["run"]["k"], [made["phi"] for made in config["recorded"].values()]
    phi = phis[0] if draft else config["run"]["phi"]
    return Arm(f"wanspec b=1 φ={phi:g}", policy, chain, k=k, phi=phi, depth=k)


def measure(arm: Arm, setting: Setting, answers: int, progress: Callable[[], None]) -> dict[str, Any]:
    """One row: `answers` answers by the arm and by the reference in turns, in one set of processes. One more before
    them does not count, in either world: it fills caches, and the policy learns of link, steps and drafts."""
    sim_arm, sim_base = _simulated(arm, setting, setting.steps, answers, setting.rtt_ms), _base(setting, answers)
    pairs: list[Pair] = []
    with tempfile.TemporaryDirectory() as folder, Stage(setting, Path(folder)) as stage:
        stage.ask(0, BASE.policy, worker=False)
        stage.ask(0, arm.policy, worker=True)
        for seed in range(1, answers + 1):
            waited_s, began = stage.waited_s(), time.perf_counter()
            base = stage.ask(seed, BASE.policy, worker=False)
            reported = stage.ask(seed, arm.policy, worker=True)
            waited = (stage.waited_s() - waited_s) / (time.perf_counter() - began)
            pairs.append(Pair(base, reported, sim_base[seed - 1], sim_arm[seed - 1], waited))
            progress()
        workers = stage.end_workers()
    return _row(arm, setting, pairs, workers, answers)


def _simulated(arm: Arm, setting: Setting, steps: Steps, answers: int, rtt_ms: float) -> list[Result]:
    """The answers that count: those after the first."""
    net = LinkModel(rtt_ms / 1000, setting.jitter_ms / 1000)
    return simulate(Cell(arm, setting.kind, net, steps, setting.length, answers + 1))[1:]


def _base(setting: Setting, answers: int, host_s: float = 0.0) -> list[Result]:
    """The reference, simulated; it is the same at every round trip."""
    return _simulated(BASE, setting, _slowed(setting, host_s, 0.0), answers, 0.0)


def _slowed(setting: Setting, engine_s: float, worker_s: float) -> Steps:
    """The modelled steps with the hosts' own time added to each round and each of the worker's steps."""

    def curve(points: dict[int, float], more_s: float) -> Curve:
        return Curve({rows: ms / 1000 + more_s for rows, ms in points.items()})

    draft = setting.draft_ms
    return Steps(curve(setting.verify_ms, engine_s), curve(draft, 0.0), curve(draft, worker_s), catch_up_s=0.0)


def _row(
    arm: Arm, setting: Setting, all_pairs: Sequence[Pair], workers: Sequence[dict[str, Any]], answers: int
) -> dict[str, Any]:
    pairs = [pair for pair in all_pairs if pair.waited <= DISTURBED] or all_pairs
    reported = [pair.arm for pair in pairs]
    rounds, tokens = sum(t.rounds for t in reported), sum(t.tokens for t in reported)
    engine_s = sum(t.host_s for t in reported) / rounds
    base_s = sum(pair.base.host_s for pair in pairs) / sum(pair.base.rounds for pair in pairs)
    rtt_ms = statistics.median(t.rtt_s for t in reported) * 1e3
    steps = sum(worker["steps"] for worker in workers)
    worker_s = sum(worker["steps"] * worker["host_us_per_step"] for worker in workers) / max(steps, 1) / 1e6
    explained = _simulated(arm, setting, _slowed(setting, engine_s, worker_s), answers, rtt_ms)
    references = _base(setting, answers, base_s)
    live, sim = _ratios(pairs)
    points = {name: round((live[name] - sim[name]) * 100, 2) for name in live}
    return {
        "rtt_ms": setting.rtt_ms,
        "config": arm.config,
        "workers": setting.workers,
        "gateway_drafts": setting.local,
        **live,
        **{f"sim_{name}": value for name, value in sim.items()},
        "latency_points": points["latency_ratio"],
        "offload_points": points["offload"],
        "sim_latency_ratio_with_host": _median(a.seconds / b.seconds for a, b in zip(explained, references)),
        "sim_offload_with_host": _median(1 - a.local_passes / b.local_passes for a, b in zip(explained, references)),
        "ms_per_token": round(sum(t.seconds for t in reported) / tokens * 1e3, 3),
        "sim_ms_per_token": round(sum(p.sim_arm.seconds for p in pairs) / tokens * 1e3, 3),
        "base_ms_per_token": round(sum(p.base.seconds for p in pairs) / tokens * 1e3, 3),
        "sim_base_ms_per_token": round(sum(p.sim_base.seconds for p in pairs) / tokens * 1e3, 3),
        **_drafted(reported),
        **{f"sim_{name}": value for name, value in _drafted([pair.sim_arm for pair in pairs]).items()},
        "rounds": rounds,
        "sim_rounds": sum(p.sim_arm.rounds for p in pairs),
        "engine_host_us_per_round": round(engine_s * 1e6, 1),
        "base_host_us_per_round": round(base_s * 1e6, 1),
        "worker_host_us_per_step": round(worker_s * 1e6, 1),
        "frames_per_round": round(sum(t.frames for t in reported) / rounds, 2),
        "rtt_measured_ms": round(rtt_ms, 2),
        "step_measured_ms": round(statistics.median(t.step_s for t in reported) * 1e3, 2),
        "target_late": all_pairs[-1].arm.late_us,
        "worker_late": [{name: late for name, late in one.items() if name.endswith("_us")} for one in workers],
        "answers": len(pairs),
        "disturbed": sum(pair.waited > DISTURBED for pair in all_pairs),
        "waited_share": round(max(pair.waited for pair in all_pairs), 4),
    }


def _drafted(made: Sequence[Reported | Result]) -> dict[str, Any]:
    """Candidates accepted per round, the gateway's draft passes per answer, and candidates by their first source."""
    return {
        "accepted_per_round": round(sum(one.accepted for one in made) / sum(one.rounds for one in made), 3),
        "gateway_passes": round(statistics.fmean(one.local_passes for one in made), 2),
        "fresh_by_worker": _by_worker(made, "fresh"),
        "accepted_by_worker": _by_worker(made, "accepted"),
    }


def _by_worker(made: Sequence[Reported | Result], what: str) -> list[int]:
    """Sums over answers, the first worker of each first."""
    counts = ([worker[what] for worker in one.by_worker] for one in made)
    return [sum(column) for column in zip_longest(*counts, fillvalue=0)]


def _ratios(pairs: Sequence[Pair]) -> tuple[dict[str, float], dict[str, float]]:
    """Latency and draft passes relative to the reference, measured and simulated: medians over the answers."""

    live = _columns((p.ratio for p in pairs), (p.arm.local_passes / p.base.local_passes for p in pairs))
    sim = _columns((p.sim_ratio for p in pairs), (p.sim_arm.local_passes / p.sim_base.local_passes for p in pairs))
    return live, sim


def _columns(latency: Iterable[float], passes: Iterable[float]) -> dict[str, float]:
    draft_ratio = _median(passes)
    return {"latency_ratio": _median(latency), "draft_ratio": draft_ratio, "offload": round(1 - draft_ratio, 4)}


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 4)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.sim replay-live`."""
    parser.add_argument("--rtt-ms", type=float, nargs="+", default=[15.0], help="round trips (default: 15)")
    arms = parser.add_mutually_exclusive_group()
    arms.add_argument("--policy", choices=POLICIES, nargs="+", default=["wanspec", "adaptive"])
    counts = "so many workers share each answer, as in `tools.sim workers`, at its steps and with its tokens"
    arms.add_argument("--workers", type=number(int, 1, MAX_SHARES), nargs="+", default=[], help=counts)
    parser.add_argument(
        "--no-local", action="store_true", help="nothing is drafted at the gateway, but by the reference"
    )
    parser.add_argument("--target-ms", type=float, help="a target pass (default: as configs/sim has it)")
    parser.add_argument("--draft-ms", type=float, help="a draft step, here and at the worker (default: likewise)")
    parser.add_argument("--jitter-ms", type=float, default=0.0, help="mean extra delay, each way")
    parser.add_argument("--draft", default="", help="a draft of the shipped recording (default: synthetic tokens)")
    parser.add_argument("--answers", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=100, help="tokens of an answer")
    parser.add_argument("--json", type=Path, default=Path("replay-live.json"), help="output; plots go beside it")


def run(options: argparse.Namespace) -> int:
    """Measures, prints and writes. Raises ConfigError, and RigError where a process fails."""
    cells = [(arm, rtt) for rtt in options.rtt_ms for arm in _arms(options)]
    setting = _setting(options)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows = []
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("replay-live", total=len(cells) * options.answers)
        for arm, rtt in cells:
            bar.update(task, description=f"{arm.config} at {rtt:g} ms")
            at = setting.of_arm(arm, rtt, options.jitter_ms)
            rows.append(measure(arm, at, options.answers, lambda: bar.advance(task)))
    report = {"setting": msgspec.to_builtins(setting), "tolerance_points": TOLERANCE_POINTS, "rows": rows}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    verbs.write_json(options.json, report)
    steps = f"{setting.verify_ms[1]:g} / {setting.draft_ms[1]:g} ms"
    plots.pairs(rows, options.json, f"Simulated and over real sockets, steps of {steps}", PANELS)
    print(table(rows))
    print(f"written: {options.json}, {options.json.with_suffix('.png')}, {options.json.with_suffix('.svg')}")
    return 0


PANELS = (
    ("latency_ratio", "latency / co-located k = 2"),
    ("offload", "offload share (1 - draft passes / co-located k = 2)"),
    ("accepted_per_round", "candidates accepted a round"),
)


def _arms(options: argparse.Namespace) -> list[Arm]:
    arms = [shared(count) for count in options.workers] or [arm_of(name, options.draft) for name in options.policy]
    return [replace(arm, local=not options.no_local) for arm in arms]


def _setting(options: argparse.Namespace) -> Setting:
    for name in ("target_ms", "draft_ms"):
        value = getattr(options, name)
        if value is not None and not 0 < value < 10_000:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: give milliseconds above 0 and below 10000.")
    if options.answers < 1 or not 1 <= options.tokens <= 2000:
        raise ConfigError("--answers takes 1 or more, --tokens 1 to 2000.")
    if any(not 0 <= rtt <= 2000 for rtt in options.rtt_ms) or not 0 <= options.jitter_ms <= 1000:
        raise ConfigError("--rtt-ms takes 0 to 2000, --jitter-ms 0 to 1000.")
    if options.draft:
        Recorded(options.draft).make(0, 1)  # says what is wrong before any process is started
    config = load("workers" if options.workers else "wanspec-cloud")
    verify, draft = config["steps"]["verify_ms"], config["steps"]["draft_ms"]
    return Setting(
        {1: options.target_ms} if options.target_ms else {int(rows): ms for rows, ms in verify.items()},
        {1: options.draft_ms} if options.draft_ms else {int(rows): ms for rows, ms in draft.items()},
        config["tokens"],
        options.draft,
        options.tokens,
    )


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One line per row: measured, simulated, and the difference in points; then what the hosts took, and what
    each worker brought. Candidates accepted are per round, the gateway's draft passes per answer."""
    head = ("", "RTT", "latency", "sim", "points", "offload", "sim", "points", "accepted", "sim", "passes", "sim")
    lines = ["{:20}{:>6}{:>10}{:>8}{:>8}{:>10}{:>8}{:>8}{:>10}{:>8}{:>8}{:>8}".format(*head)]
    for row in rows:
        lines.append(
            f"{row['config']:20}{row['rtt_ms']:6g}{row['latency_ratio']:10.3f}{row['sim_latency_ratio']:8.3f}"
            f"{row['latency_points']:+8.1f}{row['offload']:10.3f}{row['sim_offload']:8.3f}{row['offload_points']:+8.1f}"
            f"{row['accepted_per_round']:10.2f}{row['sim_accepted_per_round']:8.2f}"
            f"{row['gateway_passes']:8.1f}{row['sim_gateway_passes']:8.1f}"
        )
    for row in rows:
        engine, worker = row["engine_host_us_per_round"], row["worker_host_us_per_step"]
        line = f"{row['config']} at {row['rtt_ms']:g} ms: host {engine:.0f} us a round, worker {worker:.0f} us a step"
        if row["workers"] > 1:
            line += f"; accepted of each: {row['accepted_by_worker']}, simulated {row['sim_accepted_by_worker']}"
        lines.append(line)
    disturbed = sum(row["disturbed"] for row in rows)
    if disturbed:
        lines.append(f"{disturbed} answers were disturbed by other processes; they count only where all of a row were.")
    return "\n".join(lines)
