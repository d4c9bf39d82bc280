"""The worst workers and links against plain decoding, prompt by prompt, with real models (minutes).

`wrong`: no draft token is right. `far`: 200 ms away. `slow`: ten times slower than it reports. `loss`: 5 % of packets.
`stalls`: silent for three seconds after its first frame of each request. A completion should take at most 1.02 times as
long as by plain decoding: beside a drafting neighbour where the worker drafts all the time, and alone (*) where it
hardly does, since a neighbour slows plain decoding on the same machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from edgespec.core.errors import ConfigError
from edgespec.lab.demo import DRAFTS, PROMPTS, benched, make_rig, read_prompts, target_model
from edgespec.lab.demo.arms import ALONE, Run, Table, high
from edgespec.lab.demo.measure import Bench, neighbour_factor
from edgespec.lab.rig import module
from tools import options as checked
from tools import verbs

ARM = "adaptive"
ARMS = ("plain", "plain" + ALONE, ARM)
LIMIT = 1.02
"""Of a completion's time to plain decoding's on the same prompt."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is wrong."""

    rtt_ms: float = 20.0
    loss: float = 0.0
    worker: str = ""
    """A case of bad_worker.py; "": an honest worker."""

    @property
    def base(self) -> str:
        """The plain decoding that it is compared with: without neighbour where the worker is idle most of the time."""
        return "plain" + ALONE if self.worker in ("slow", "stalls") else "plain"

    def rig_options(self) -> dict[str, Any]:
        """For `make_rig`."""
        command = [*module("edgespec.lab.rig.bad_worker"), self.worker]
        return {
            "link_options": ["--loss", str(self.loss)] if self.loss else [],
            "programs": {"worker": command} if self.worker else {},
        }


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
    parser.add_argument("--target", choices=("plain", "deep"), default="plain")
    parser.add_argument("--blocks", type=checked.number(int, 2, 16), default=4, help="of the deep target")
    parser.add_argument("--draft", choices=tuple(DRAFTS), default="quantised")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSON lines: `prompt` or `turns`")
    parser.add_argument("--limit", type=checked.number(int, 1, 1000), default=20, help="prompts to use")
    parser.add_argument("--max-tokens", type=checked.number(int, 1, 1024), default=128)
    parser.add_argument("--seed", type=int, default=1, help="which prompts are drawn, and in which order")
    parser.add_argument("--json", type=checked.output, metavar="OUT")


def run(options: argparse.Namespace) -> int:
    """Prints a row for each case. Raises ConfigError, ModelError, RigError."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the processes are ended, too
    console = verbs.console()
    prompts = read_prompts(options.prompts, options.limit, options.seed)
    if not prompts:
        raise ConfigError("There are no prompts.")
    target, draft = target_model(options, console), DRAFTS[options.draft]()
    rows = {}
    for name in options.case:
        with prepared(CASES[name], str(target), str(draft)) as bench:
            rows[name] = measured(bench, prompts, options.max_tokens, console, name)
            rows[name]["base"] = CASES[name].base if bench.neighbour else "plain"
        verbs.write_json(options.json, {"options": _plainly(options), "cases": rows})
    show(rows, console)
    return 0


def _plainly(options: argparse.Namespace) -> Any:
    return json.loads(json.dumps({key: value for key, value in vars(options).items() if key != "run"}, default=str))


@contextlib.contextmanager
def prepared(case: Case, target: str, draft: str) -> Iterator[Bench]:
    """The rig of one case with its neighbour."""
    with (
        tempfile.TemporaryDirectory(prefix="edgespec-worst-") as folder,
        make_rig(Path(folder), target, draft, case.rtt_ms, **case.rig_options()).linked() as rig,
        benched(rig, "none") as bench,
    ):
        yield bench


def measured(bench: Bench, prompts: Sequence[str], max_tokens: int, console: Console, name: str) -> dict[str, Any]:
    """The figures of one case; arms in turns, each prompt beginning with another one."""
    table, factor = Table(), neighbour_factor(bench)
    arms = [arm for arm in ARMS if bench.neighbour or not arm.endswith(ALONE)]
    for number, prompt in enumerate(prompts):
        shift = number % len(arms)
        table.add({arm: bench.run(prompt, max_tokens, arm) for arm in [*arms[shift:], *arms[:shift]]})
        if console.is_terminal:
            console.print(f"{name}: {number + 1} of {len(prompts)} prompts", end="\r")
    return row(table) | {"neighbour": factor}


def row(table: Table) -> dict[str, Any]:
    """Times of whole completions, their ratios to plain decoding, and why the policy did what it did."""
    figures: dict[str, Any] = {"prompts": len(table.runs), "prompts_dropped": table.dropped}
    figures["disturbed"] = not table.clean
    for base in ("plain", "plain" + ALONE):
        if table.has(base):
            ratios = table.ratios(ARM, base, _whole)
            figures[base] = {
                "ms_per_token": round(table.median(base, _whole), 3),
                "ratio": round(table.ratio(ARM, base, _whole), 4),
                "ratio_p90": round(high(ratios), 4),
                "above_limit": sum(ratio > LIMIT for ratio in ratios),
            }
    reasons = Counter(
        str(runs[ARM].usage["why_off"] or runs[ARM].usage["why"] or "no reason given") for runs in table.runs
    )
    same = sum(runs[ARM].text == runs["plain"].text for runs in table.runs)
    return figures | {
        "ms_per_token": round(table.median(ARM, _whole), 3),
        "reasons": dict(reasons.most_common()),
        "same_text": same,
        "runs": [{arm: one.figures() for arm, one in runs.items()} for runs in table.every],
    }


def _whole(run: Run) -> float:
    return run.total_ms_per_token


def show(rows: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """One line per case."""
    table = RichTable(title="Whole completions, ms per token; ratios to plain decoding on the same prompt")
    for column in ("case", "plain", "alone", ARM, "ratio", "p90", f"above {LIMIT}"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for name, found in rows.items():
        base, alone = found[found["base"]], found.get("plain" + ALONE)
        table.add_row(
            name + ("*" if found["base"] != "plain" else ""), f"{found['plain']['ms_per_token']:.1f}",
            f"{alone['ms_per_token']:.1f}" if alone else "", f"{found['ms_per_token']:.1f}",
            f"{base['ratio']:.3f}", f"{base['ratio_p90']:.3f}", f"{base['above_limit']} of {found['prompts']}",
        )  # fmt: skip
    console.print(table)
    for name, found in rows.items():
        if found["disturbed"]:
            console.print(f"[yellow]{name}: other processes were busy during every prompt.[/]")
        console.print(f"{name}: {'; '.join(f'{why} ({count})' for why, count in found['reasons'].items())}")
