"""The worst workers and links against plain decoding, prompt by prompt, with real models (minutes).

`wrong`: no draft token is right. `far`: 200 ms away. `slow`: ten times slower than it reports. `loss`: 5 % of packets.
`stalls`: silent for three seconds after its first frame of each request. A completion should take at most 1.02 times as
long as by plain decoding: beside a drafting neighbour where the worker drafts all the time, and alone (*) where it
hardly does, since a neighbour slows plain decoding on the same machine. One gateway serves all cases, each with a
worker and an API key of its own; plain decoding is measured once for each prompt, in turns with them.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from edgespec.core.errors import ConfigError
from edgespec.lab.demo.arms import LOCAL, REMOTE, Run, Table
from edgespec.lab.demo.scene import DRAFTS, PROMPTS, benched, make_rig, read_prompts
from edgespec.lab.rig import module
from tools import deep_target, verbs
from tools import options as checked
from tools.places.series import ALONE, Asked, Runs, Series, high, measured, neighbour_factor, save, saved, trace_options

WARM_UP = "Tell me in a few sentences how a lighthouse works."
"""Answered once in each case before the timing; not one of the prompts."""
WARM_TOKENS = 32
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

    @property
    def link(self) -> list[str]:
        """Options of the proxy."""
        return ["--loss", str(self.loss)] if self.loss else []

    @property
    def program(self) -> list[str]:
        """What is run in place of `edgespec run`."""
        return [*module("tools.bad_worker"), self.worker] if self.worker else []


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
    parser.set_defaults(engine="torch")
    parser.add_argument("--draft", choices=tuple(DRAFTS), default="quantised")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSON lines: `prompt` or `turns`")
    parser.add_argument("--limit", type=checked.number(int, 1, 1000), default=20, help="prompts to use")
    parser.add_argument("--max-tokens", type=checked.number(int, 1, 1024), default=128)
    parser.add_argument("--seed", type=int, default=1, help="which prompts are drawn, and in which order")
    parser.add_argument("--json", type=checked.output, metavar="OUT", help="written after every prompt")
    parser.add_argument("--resume", action="store_true", help="go on with the file of --json")
    parser.add_argument("--minutes", type=float, default=240.0, help="begin no prompt that would end later")
    parser.add_argument("--traces", type=Path, metavar="DIR", help="keep a trace of each completion")


def run(options: argparse.Namespace) -> int:
    """Prints a row for each case. Raises ConfigError, ModelError, RigError."""
    began, console = time.monotonic(), verbs.console()
    if options.resume and not options.json:
        raise ConfigError("--resume needs the file to go on with: name it with --json.")
    if options.traces:
        options.traces.mkdir(parents=True, exist_ok=True)
    prompts = read_prompts(options.prompts, options.limit, options.seed)
    setting = {name: getattr(options, name) for name in ("case", "target", "blocks", "draft", "max_tokens", "seed")}
    done = saved(options.json, setting)[1] if options.resume else []
    with prepared(options) as series:
        factor = neighbour_factor(series.bench)
        arms = arms_of(options.case, beside=series.bench.neighbour is not None)
        series.warm_up(WARM_UP, WARM_TOKENS, arms)
        console.print(f"Ready after {time.monotonic() - began:.0f} s")
        until = began + options.minutes * 60
        for every in measured(series, prompts, options.max_tokens, lambda _: arms, done, until, console):
            done = every
            save(options.json, setting, done, neighbour=factor, cases=rows_of(done, options.case))
    show(rows_of(done, options.case), console)
    return 0


@contextlib.contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Series]:
    """One gateway with a neighbour, and the worker of each case."""
    target, draft = str(deep_target.target_model(options, verbs.console())), str(DRAFTS[options.draft]())
    with tempfile.TemporaryDirectory(prefix="edgespec-worst-") as name, make_rig(Path(name), target, draft, 0.0) as rig:
        rig.gateway_options = {**rig.gateway_options, **trace_options(rig.folder, options.traces)}
        rig.start_gateway()
        rig.create_key()
        cases = {name: CASES[name] for name in options.case}
        keys = {name: rig.add_worker(name, case.rtt_ms, case.link, case.program) for name, case in cases.items()}
        with benched(rig) as bench:
            yield Series(bench, keys, options.traces)


def arms_of(cases: Sequence[str], *, beside: bool) -> list[Asked]:
    """Plain decoding, beside the neighbour and alone, and each case."""
    plain = [Asked("plain", LOCAL["plain"])]
    alone = [Asked("plain" + ALONE, LOCAL["plain"], beside=False)] if beside else []
    return [*plain, *alone, *(Asked(name, REMOTE["adaptive"], name) for name in cases)]


def rows_of(every: Sequence[Runs], cases: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The figures of each case."""
    table = Table()
    for runs in every:
        table.add(runs)
    alone = table.has("plain" + ALONE)
    return {name: row(table, name) | {"base": CASES[name].base if alone else "plain"} for name in cases}


def row(table: Table, arm: str) -> dict[str, Any]:
    """Times of whole completions, their ratios to plain decoding, and why the policy did what it did."""
    figures: dict[str, Any] = {"prompts": len(table.runs), "prompts_dropped": table.dropped}
    figures["disturbed"] = not table.clean
    for base in ("plain", "plain" + ALONE):
        if table.has(base):
            ratios = table.ratios(arm, base, _whole)
            figures[base] = {
                "ms_per_token": round(table.median(base, _whole), 3),
                "ratio": round(table.ratio(arm, base, _whole), 4),
                "ratio_p90": round(high(ratios), 4),
                "above_limit": sum(ratio > LIMIT for ratio in ratios),
            }
    reasons = Counter(
        str(runs[arm].usage["why_off"] or runs[arm].usage["why"] or "no reason given") for runs in table.runs
    )
    same = sum(runs[arm].text == runs["plain"].text for runs in table.runs)
    return figures | {
        "ms_per_token": round(table.median(arm, _whole), 3),
        "reasons": dict(reasons.most_common()),
        "same_text": same,
    }


def _whole(run: Run) -> float:
    return run.total_ms_per_token


def show(rows: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """One line per case."""
    table = RichTable(title="Whole completions, ms per token; ratios to plain decoding on the same prompt")
    for column in ("case", "plain", "alone", "adaptive", "ratio", "p90", f"above {LIMIT}"):
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
