"""The simulator beside the demo: the same completions at the step times that the demo's traces show.

`python -m tools.places --json OUT --traces DIR` measures, `python -m tools.sim from-demo OUT DIR` simulates the same.
A ratio is to co-located k = 2 on the same prompt: measured to measured, simulated to simulated. `sim` has one set of
step times for all arms, the medians of the run; `own` has each arm's, so what lies between the two is a pass that took
another time in this arm, and what is left between `own` and `live` is the hosts' and the model's of the simulator.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cloud_gateway.core.policies.registry import ALONE, make
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule
from edgespec.core.drafting.calibration import Calibrator
from edgespec.core.errors import ConfigError, TraceError
from edgespec.lab.demo.arms import CONTROL
from edgespec.lab.link_model import LinkModel
from edgespec.lab.replay.look import look
from edgespec.lab.sim.from_trace import Traced, scaled
from edgespec.lab.sim.world import Curve, Result, Steps
from edgespec.lab.sim.world import run as simulate
from tools import verbs

BASE = "colocated_k2"
PROMPT_LEN = 2
"""Of the simulated request: the prompt is behind it."""
BRANCHING, SEQUENCES = 4, 16
"""Of the worker, as it ships."""
FILLINGS = 4
"""Ways of filling what the traces leave open; figures are means over them."""
MIN_SEEN = 3
"""Passes of a row count before their median is taken."""
TOLERANCE_POINTS = 5.0

Completions = Mapping[str, Traced]
"""Of one prompt, by arm."""


@dataclass(frozen=True, slots=True)
class Times:
    """Step times of a whole run: medians over the arms that ran beside a drafting worker or neighbour."""

    verify: Curve
    local_s: float
    token_s: float

    @classmethod
    def of(cls, every: Iterable[Traced]) -> Times:
        """Raises TraceError where no pass or no local draft step was recorded."""
        passes, drafts, tokens = defaultdict[int, list[float]](list), list[float](), list[float]()
        expected: dict[int, float] = {}
        for traced in every:
            expected = dict(traced.measured.expected)
            for rows, seconds in traced.measured.timed.items():
                passes[rows] += seconds
            drafts += traced.measured.drafts_s
            tokens += [traced.measured.token_s] if traced.measured.token_s else []
        often = {rows: seconds for rows, seconds in passes.items() if len(seconds) >= MIN_SEEN}
        if not often or not drafts:
            raise TraceError("The traces hold too few passes of the target, or no local draft step.")
        return cls(scaled(expected, often), statistics.median(drafts), statistics.median(tokens or [0.0]))

    def steps(self, traced: Traced) -> Steps:
        """For one completion: its worker's curve and its backlog at the start, all else the run's."""
        own = own_steps(traced)
        unread = round(traced.start.backlog_s / self.token_s) if self.token_s else 0
        local = Curve({1: self.local_s})
        return replace(own, verify=self.verify, local=local, catch_up_s=self.token_s, unread=unread)


def own_steps(traced: Traced) -> Steps:
    """As this completion's own trace shows them, with the worker's curve as it reported it."""
    return replace(traced.steps, worker=Curve(traced.measured.reported)) if traced.measured.reported else traced.steps


def simulated(traced: Traced, steps: Steps, number: int, learnt: Sequence[Calibrator]) -> tuple[float, float]:
    """Milliseconds per token and passes of the target, by the recorded policy with what it had learnt before.

    `learnt`: by its worker, for each filling; one process drafts all completions of an arm (daemon.py).
    """
    settings, results = traced.header.settings, list[Result]()
    alone = settings.name in ALONE or traced.rtt_s is None
    for filling in range(FILLINGS):
        process = traced.process(number * FILLINGS + filling)
        rule = BestFirstRule(branching=BRANCHING, sequences=SEQUENCES)
        workers = [] if alone else [BestFirst(1, 1, PROMPT_LEN, rule, calibrator=learnt[filling], step_s=steps.worker)]
        controller = make(settings, traced.header.policy_state)
        net = LinkModel(0.0) if alone else traced.net()
        ahead_s = 0.0 if alone else traced.ahead_s
        results.append(simulate(controller, workers, process, net, steps, traced.tokens, filling, ahead_s=ahead_s))
    seconds = statistics.mean(result.seconds for result in results)
    return seconds * 1000 / traced.tokens, statistics.mean(result.rounds for result in results)


def read(folder: Path) -> dict[int, dict[str, Traced]]:
    """Completions by prompt and arm, those of one text joined; plain decoding shows nothing of a draft."""
    found: dict[int, dict[str, Traced]] = defaultdict(dict)
    for path in sorted(folder.glob("*.trace")):
        number, _, arm = path.stem.partition("-")
        if arm.startswith("plain") or not number.isdigit():
            continue
        try:
            found[int(number)][arm] = Traced(look(path, path.read_bytes(), None).trace)
        except TraceError:
            continue  # answered before its worker had read the prompt: nothing to simulate
    for arms in found.values():
        for mine in arms.values():
            for other in arms.values():
                if other is not mine:
                    mine.join(other)
    return found


def row(every: Mapping[int, Completions], arm: str, times: Times) -> dict[str, Any]:
    """One arm over all prompts that it and the reference have."""
    live, sim, own = list[float](), list[float](), list[float]()
    passes, sim_passes, known = 0, 0.0, list[float]()
    learnt, learnt_own = ([Calibrator() for _ in range(FILLINGS)] for _ in ("sim", "own"))
    for number, arms in every.items():
        if arm not in arms or BASE not in arms:
            continue
        mine, base = arms[arm], arms[BASE]
        live.append(mine.ms_per_token / base.ms_per_token)
        (ms, rounds), (base_ms, _) = (simulated(one, times.steps(one), number, learnt) for one in (mine, base))
        sim.append(ms / base_ms)
        own_ms, own_base_ms = (simulated(one, own_steps(one), number, learnt_own)[0] for one in (mine, base))
        own.append(own_ms / own_base_ms)
        passes, sim_passes = passes + mine.passes, sim_passes + rounds
        known.append(mine.known)
    if not live:
        raise TraceError(f"No prompt has traces of {arm} and of {BASE}.")
    ratios = {name: round(statistics.median(of), 4) for name, of in (("live", live), ("sim", sim), ("own", own))}
    return {
        "arm": arm, "prompts": len(live), **ratios,
        "points": round((ratios["live"] - ratios["sim"]) * 100, 2),
        "points_own": round((ratios["live"] - ratios["own"]) * 100, 2),
        "passes": passes, "sim_passes": round(sim_passes, 1), "known": round(statistics.mean(known), 3),
        "spent_ms": spent(found[arm] for found in every.values() if arm in found),
    }  # fmt: skip


def spent(every: Iterable[Traced]) -> dict[str, float]:
    """Milliseconds per token by what was decided: passes of the target, drafts and reading here, waiting."""
    times, tokens = defaultdict[str, float](float), 0
    for traced in every:
        tokens += traced.tokens + traced.start.tokens
        for kind, seconds in traced.measured.spent_s.items():
            times[kind] += seconds
    return {kind: round(seconds * 1000 / tokens, 2) for kind, seconds in sorted(times.items())}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.sim from-demo`."""
    parser.add_argument("figures", type=Path, metavar="OUT", help="the demo's --json")
    parser.add_argument("traces", type=Path, metavar="DIR", help="the demo's --traces")
    parser.add_argument("--json", type=Path, help="write the rows to this file")


def run(options: argparse.Namespace) -> int:
    """Simulates, prints and writes. Raises ConfigError and TraceError."""
    try:
        figures = json.loads(options.figures.read_text())
        setting, arms = figures["setting"], [one["arm"] for one in figures["rows"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{options.figures} is no table by `python -m tools.places` ({error}).") from None
    every = read(options.traces)
    arms += [CONTROL] if any(CONTROL in found for found in every.values()) else []
    times = Times.of(one for found in every.values() for arm, one in found.items() if not arm.endswith("_alone"))
    rows = [row(every, arm, times) for arm in arms]
    print(f"target {setting['target']}, draft {setting['draft']}\n{table(rows)}")
    base = spent(found[BASE] for found in every.values() if BASE in found)
    for arm, times in {BASE: base, **{one["arm"]: one["spent_ms"] for one in rows}}.items():
        print(f"{arm}: ms per token {', '.join(f'{ms:.1f} {kind}' for kind, ms in times.items())}")
    verbs.write_json(options.json, {"setting": setting, "tolerance_points": TOLERANCE_POINTS, "rows": rows})
    return 0


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per arm: ratios, differences in points, passes, and the share of draft tokens that were recorded."""
    head = ("arm", "prompts", "live", "sim", "points", "own", "points", "passes", "sim", "known")
    lines = ["{:22}{:>8}{:>7}{:>7}{:>8}{:>7}{:>8}{:>8}{:>8}{:>7}".format(*head)]
    for one in rows:
        lines.append(
            f"{one['arm']:22}{one['prompts']:8}{one['live']:7.3f}{one['sim']:7.3f}{one['points']:+8.1f}"
            f"{one['own']:7.3f}{one['points_own']:+8.1f}{one['passes']:8}{one['sim_passes']:8.1f}{one['known']:7.2f}"
        )
    return "\n".join(lines)
