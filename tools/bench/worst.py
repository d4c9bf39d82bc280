"""The worst workers and links against the same gateway without a worker, prompt by prompt, with real models (minutes).

`wrong`: no draft token is right. `far`: 200 ms away. `slow`: ten times slower than it reports. `loss`: 5 % of packets.
`stalls`: silent for three seconds after its first frame of each request. A completion should take at most 1.02 times as
long as without a worker: beside a drafting neighbour where the worker drafts all the time, and alone (*) where it
hardly does, since a neighbour slows the target on the same machine. One gateway serves all cases, each with a worker
and an API key of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from edgespec.shared import models
from edgespec_lab import options as checked
from edgespec_lab import verbs
from edgespec_lab.demo.arms import CONTROL, LOCAL, REMOTE, Run, Table
from edgespec_lab.demo.scene import DRAFTS, PROMPTS, benched, make_rig, read_prompts
from edgespec_lab.places.series import Asked, Runs, Series, high, measured, save
from edgespec_lab.rig import TORCH, Rig, module

WARM_UP = "Tell me in a few sentences how a lighthouse works."
"""Answered once in each case before the timing; not one of the prompts."""
WARM_TOKENS = 32
LIMIT = 1.02
"""Of a completion's time to that without a worker on the same prompt."""
ALONE = CONTROL + "*"


class Case(NamedTuple):
    """What is wrong."""

    rtt_ms: float = 20.0
    loss: float = 0.0
    worker: str = ""
    """A case of bad_worker.py; "": an honest worker."""

    @property
    def control(self) -> str:
        """Without neighbour where the worker is idle most of the time."""
        if self.worker in ("slow", "stalls"):
            return ALONE
        return CONTROL


CASES: Mapping[str, Case] = {
    "wrong": Case(worker="wrong"),
    "far": Case(rtt_ms=200.0),
    "slow": Case(worker="slow"),
    "loss": Case(loss=0.05),
    "stalls": Case(worker="stalls"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench worst`."""
    parser.add_argument("--case", choices=tuple(CASES), nargs="+", default=list(CASES), help="default: all")
    parser.add_argument("--draft", choices=("quantised", "requantised", "dropped"), default="quantised")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSON lines: `prompt` or `turns`")
    parser.add_argument(
        "--limit", type=checked.number(int, 1, 1000), default=10, help="prompts to use; the demo has 16"
    )
    parser.add_argument("--max-tokens", type=checked.number(int, 1, 1024), default=128)
    parser.add_argument("--json", type=checked.output, metavar="OUT", help="written after every prompt")


def run(options: argparse.Namespace) -> int:
    """Prints a row for each case. Raises ConfigError, ModelError, RigError."""
    console = verbs.console()
    rows = list[dict[str, Any]]()
    prompts = read_prompts(options.prompts, options.limit, seed=1)
    setting = {name: getattr(options, name) for name in ("case", "draft", "max_tokens", "limit")}
    arms = [Asked(CONTROL, LOCAL[CONTROL]), Asked(ALONE, LOCAL[CONTROL], beside=False)]
    arms += [Asked(name, REMOTE["adaptive"], name) for name in options.case]
    with prepared(options) as series:
        series.warm_up(WARM_UP, WARM_TOKENS, arms)
        for every in measured(series, prompts, options.max_tokens, lambda _: arms, math.inf, console):
            rows = rows_of(every, options.case)
            save(options.json, setting, every, cases=rows)
    console.print(verbs.table(rows))
    return 0


def rig_of(folder: Path, options: argparse.Namespace) -> Rig:
    """The gateway, whose target is in torch as in the pages of results; its workers are added."""
    return make_rig(folder, str(models.quantised()), str(DRAFTS[options.draft]()), 0.0, engine=TORCH)


@contextlib.contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Series]:
    """One gateway with a neighbour, and the worker of each case."""
    with tempfile.TemporaryDirectory(prefix="edgespec-worst-") as name, rig_of(Path(name), options) as rig:
        rig.start_gateway()
        rig.create_key()
        keys = {}
        for name, case in ((name, CASES[name]) for name in options.case):
            link = ["--loss", str(case.loss)] if case.loss else []
            program = [*module("tools.bad_worker"), case.worker] if case.worker else []
            keys[name] = rig.add_worker(name, case.rtt_ms, link, program)
        with benched(rig) as bench:
            yield Series(bench, keys)


def rows_of(every: Sequence[Runs], cases: Sequence[str]) -> list[dict[str, Any]]:
    """For each case whole completions, their ratios to the control, and why the policy did what it did."""
    table = Table()
    for runs in every:
        table.add(runs)
    return [row(table, name, CASES[name].control) for name in cases]


def row(table: Table, arm: str, control: str) -> dict[str, Any]:
    """One case. Times are milliseconds per token, the prefill included."""
    ratios = table.ratios(arm, control, _whole)
    why = Counter(str(runs[arm].usage["why_off"] or runs[arm].usage["why"] or "none given") for runs in table.runs)
    return {
        "case": arm + ("*" if control == ALONE else ""),
        "prompts": len(table.runs),
        "disturbed": table.dropped if table.clean else len(table.runs),
        "no worker ms": round(table.median(control, _whole), 1),
        "adaptive ms": round(table.median(arm, _whole), 1),
        "ratio": round(table.ratio(arm, control, _whole), 3),
        "p90": round(high(ratios), 3),
        f"above {LIMIT}": sum(ratio > LIMIT for ratio in ratios),
        "single ratios": " ".join(f"{ratio:.2f}" for ratio in ratios),
        "same text": sum(runs[arm].text == runs[control].text for runs in table.runs),
        "reason": why.most_common(1)[0][0],
    }


def _whole(run: Run) -> float:
    return run.total_ms_per_token
