"""Is the text the same with any drafter, whatever happens to it?

A real gateway, real workers behind a delayed TLS link, real models. Each request is answered under five conditions
(conditions.py): no worker, one, two, one killed (-9) half-way through, one that sends random trees. All of that is done
with each policy. Exit code 0 only if all texts are the same and each condition was applied to at least half of the
requests.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cloud_gateway.core.policies.settings import PolicySettings
from edgespec.shared import models
from edgespec_lab import options, verbs
from edgespec_lab.choices import gateway_choices
from edgespec_lab.demo.scene import PROMPTS, read_prompts
from edgespec_lab.rig import LLAMACPP, TORCH, Rig
from tools.lossless.conditions import CONDITIONS, Answer, Case, ask, prepare

WORKERS = ("worker", "second", "random")
OWN_TEXT = ["lookup"]
"""Sources of each request. Every request is asked under each condition: a source that finds text of earlier completions
again would leave the workers nothing to do."""
ENOUGH = 0.5
"""Share of the answers that a condition must have befallen."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 30},
        "kind": {"enum": ["story", "fact", "advice"]},
        "facts": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string", "maxLength": 40}},
        "year": {"type": ["integer", "null"], "minimum": 1000, "maximum": 2100},
    },
    "required": ["title", "kind", "facts", "year"],
    "additionalProperties": False,
}
JSON_BODY = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "summary", "schema": SCHEMA, "strict": True}},
    "max_tokens": 200,
}
"""The schema bounds the completion's length."""
Answers = dict[str, Answer]
"""By the name of the case."""


def sampled(number: int, prompt: str, args: argparse.Namespace) -> list[Case]:
    """One prompt at every temperature with every seed."""
    return [
        Case("sampled", f"{number}/T={temperature:g}/seed={seed}", _body(prompt, args, temperature, seed))
        for temperature in args.temperature
        for seed in range(1, args.seeds + 1)
    ]


def others(number: int, prompt: str, args: argparse.Namespace, known: Answers) -> list[Case]:
    """Greedy, penalties, two choices at once, JSON of a schema, and a stop string across the border of two words."""
    first = args.temperature[0]
    body = _body(prompt, args, first, 1)
    penalties = {"frequency_penalty": 0.6, "presence_penalty": 0.4, "repetition_penalty": 1.1}
    cases = [
        Case("greedy", f"{number}/greedy", body | {"temperature": 0}),
        Case("penalties", f"{number}/penalties", body | penalties),
        Case("choices", f"{number}/n=2", body | {"n": 2}),
        Case("json", f"{number}/json", body | {"messages": _messages(f"{prompt} Answer as JSON."), **JSON_BODY}),
    ]
    stop = border(known[f"{number}/T={first:g}/seed=1"].choices[0][0])
    if stop:
        return [*cases, Case("stop", f"{number}/stop", body | {"stop": [stop]})]

    return cases


def border(text: str) -> str | None:
    """Letters of two neighbouring words past the middle of a text: a token border is in between. None without any."""
    for i in range(len(text) // 2, len(text) - 2):
        if text[i] == " " and text[i - 2 : i].isalpha() and text[i + 1 : i + 3].isalpha():
            return text[i - 2 : i + 3]
    return None


def _body(prompt: str, args: argparse.Namespace, temperature: float, seed: int) -> dict[str, Any]:
    return {
        "messages": _messages(prompt),
        "max_tokens": args.max_tokens,
        "temperature": temperature,
        "top_p": 0.95,
        "seed": seed,
        "edgespec": {"usage": True, "policy": args.policy[0], "phi": args.phi, "sources": OWN_TEXT},
    }


def _messages(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def make_stage(folder: Path, args: argparse.Namespace) -> Rig:
    """The gateway's own draft and the second worker's are the poorer one, so that mismatches are frequent enough."""
    good = str(models.quantised())
    poor = str(models.dropped())
    settings: dict[str, Any] = {"target.threads": 1, "local_draft.threads": 1, "target.slots": max(4, args.at_once)}
    # Texts can only be equal if the target is exact. With AMX that takes 64 rows for one in bfloat16, for which
    # the gateway waits to be asked.
    settings["target.exact"] = "yes"
    if args.engine == TORCH:
        settings["target.dtype"] = args.dtype

    return Rig(
        folder,
        good,
        good,
        poor,
        rtt_ms=args.rtt_ms,
        gateway_options=settings,
        worker_options={"draft.threads": 1},
        drafts={"second": poor},
        engine=args.engine,
    )


def set_up(stage: Rig, console: Console) -> None:
    """Gateway, key, delayed link and three paired workers, none of which runs yet."""
    with console.status("Starting the gateway and pairing three workers"):
        stage.start_gateway()
        stage.create_key()
        stage.start_proxy()
        for worker in WORKERS:
            stage.pair(worker)


class Matrix:
    """The answers by condition and case, as they come in."""

    def __init__(self, stage: Rig, args: argparse.Namespace) -> None:
        self.stage = stage
        self.args = args
        self.cases: list[Case] = []
        self.found: dict[str, Answers] = {condition: {} for condition in CONDITIONS}
        self.trees: dict[str, Counter[str]] = {condition: Counter() for condition in CONDITIONS}
        """Frames by worker under each condition."""

    def run(self, prompts: Sequence[str], progress: Progress) -> Iterator[dict[str, Any]]:
        """Every prompt under every condition, a block of prompts after the other; yields the report after each block.

        The stage stands, and no worker runs yet.
        """
        task = progress.add_task("", total=len(prompts) * len(CONDITIONS))
        numbered = list(enumerate(prompts))
        for start in range(0, len(prompts), self.args.block):
            block = numbered[start : start + self.args.block]
            cases = [sampled(number, prompt, self.args) for number, prompt in block]
            for condition in CONDITIONS:
                progress.update(task, description=condition)
                prepare(self.stage, condition)
                before = self._trees()
                for (number, prompt), some in zip(block, cases, strict=True):
                    self._answer(condition, some)
                    if condition == CONDITIONS[0] and number < self.args.others:
                        more = others(number, prompt, self.args, self.found[condition])
                        self._answer(condition, more)
                        some += more
                    progress.advance(task)
                self.trees[condition] += self._trees() - before
            self.cases += [case for some in cases for case in some]
            yield self.report()

    def _answer(self, condition: str, cases: Sequence[Case]) -> None:
        """Answers these cases under the present condition, so many at once."""
        for start in range(0, len(cases), self.args.at_once):
            batch = cases[start : start + self.args.at_once]
            known = [] if condition == CONDITIONS[0] else [self.found[CONDITIONS[0]][case.name] for case in batch]
            answers = ask(self.stage, condition, batch, known)
            self.found[condition] |= {case.name: one for case, one in zip(batch, answers, strict=True)}

    def _trees(self) -> Counter[str]:
        listed = self.stage.gateway_command("workers", "list", "--json")["workers"]
        return Counter({one["name"]: one["frames"] or 0 for one in listed if one["linked"]})

    def report(self) -> dict[str, Any]:
        """All that is known so far."""
        names = [case.name for case in self.cases]
        rows = self.rows()
        settings = {name: value for name, value in vars(self.args).items() if name not in ("json", "prompts", "run")}
        return {
            "identical": all(row["identical"] == row["answers"] for row in rows),
            "exercised": all(self.exercised(condition, names) >= ENOUGH for condition in CONDITIONS),
            "settings": settings,
            "rows": rows,
            "frames_by_worker": self.trees,
            "differences": [
                {"condition": condition, "case": name, "expected": self.found[CONDITIONS[0]][name].choices,
                 "found": self.found[condition][name].choices}
                for condition in CONDITIONS for name in self.differing(condition, names)
            ],
            "texts": {name: self.found[CONDITIONS[0]][name].choices for name in names},
        }  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        """One for each kind of request and condition."""
        kinds = dict.fromkeys(case.kind for case in self.cases)
        return [self._row(kind, condition) for kind in kinds for condition in CONDITIONS]

    def _row(self, kind: str, condition: str) -> dict[str, Any]:
        names = [case.name for case in self.cases if case.kind == kind]
        figures = [self.found[condition][name].figures() for name in names]
        sums = {name: sum(one[name] for one in figures) for name in figures[0]}
        return {
            "kind": kind,
            "condition": condition,
            "answers": len(names),
            "identical": len(names) - len(self.differing(condition, names)),
            "exercised": round(self.exercised(condition, names) * len(names)),
            "tokens_per_round": round(sums["tokens"] / sums["rounds"], 3),
            **sums,
        }

    def exercised(self, condition: str, names: Sequence[str]) -> float:
        """Share of these cases to which the condition was applied."""
        return sum(self.found[condition][name].exercised(condition) for name in names) / len(names)

    def differing(self, condition: str, names: Sequence[str]) -> list[str]:
        """Cases whose answer is not that of the first condition."""
        expected = self.found[CONDITIONS[0]]
        found = self.found[condition]
        return [name for name in names if found[name].choices != expected[name].choices]


def show(report: dict[str, Any], console: Console) -> None:
    """The rows as a table, and the verdict."""
    table = Table("kind", "condition", "same", "applied", "tokens/round", "frames", "verified", "accepted")
    for row in report["rows"]:
        share = (f"{row[name]}/{row['answers']}" for name in ("identical", "exercised"))
        counts = (str(row[name]) for name in ("frames_used", "verified_from_workers", "accepted_from_workers"))
        table.add_row(row["kind"], row["condition"], *share, f"{row['tokens_per_round']:.2f}", *counts)
    console.print(table)
    for different in report["differences"]:
        console.print(f"[red]{different['case']} differs under condition {different['condition']}[/]")
    if not report["exercised"]:
        console.print("[red]A condition was applied to too few of its requests, which proves nothing.[/]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.lossless matrix`."""
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSON lines: `prompt` or `turns`")
    parser.add_argument("--limit", type=options.number(int, 1, 10_000), default=4, help="prompts to use")
    parser.add_argument("--seeds", type=options.number(int, 1, 1000), default=1, help="answers to each prompt")
    parser.add_argument("--temperature", type=options.number(float, 0, 2), nargs="+", default=[0.7, 1.0], metavar="T")
    parser.add_argument(
        "--max-tokens", type=options.number(int, 1, 1024), default=64, help="of one answer (default %(default)s)"
    )
    parser.add_argument(
        "--others",
        type=options.number(int, 0, 10_000),
        default=2,
        help="prompts also asked greedily, with penalties, n=2, JSON, stop",
    )
    parser.add_argument(
        "--at-once",
        type=options.number(int, 1, 32),
        default=3,
        help="requests under way together",
    )
    parser.add_argument(
        "--block",
        type=options.number(int, 1, 10_000),
        default=5,
        help="prompts after which all conditions had their turn, and OUT is written",
    )
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="of the engine torch")
    parser.add_argument("--engine", choices=(TORCH, LLAMACPP), default=TORCH, help="what computes the target")
    parser.add_argument(
        "--policy",
        choices=sorted(gateway_choices().policies),
        nargs="+",
        default=[PolicySettings().name],
        metavar="NAME",
        help="each with all conditions; the texts of all are compared (default: the gateway's)",
    )
    parser.add_argument(
        "--texts-only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="policies of which only the texts count: `adaptive` does without a worker that is late",
    )
    parser.add_argument("--phi", type=options.number(float, 0, 100), default=3.0)
    parser.add_argument(
        "--rtt-ms", type=options.number(float, 0, 10_000), default=20.0, help="round trip of the link in milliseconds"
    )
    parser.add_argument("--json", type=options.output, metavar="OUT", help="write everything here, texts included")


def run(args: argparse.Namespace) -> int:
    """All conditions. Raises ModelError, RigError, ConfigError."""
    console = Console(stderr=True)
    began = time.monotonic()
    columns = TextColumn("{task.description:8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    reports: dict[str, dict[str, Any]] = {}
    prompts = read_prompts(args.prompts, args.limit, seed=1)
    with tempfile.TemporaryDirectory(prefix="edgespec-matrix-") as folder, make_stage(Path(folder), args) as stage:
        set_up(stage, console)
        with Progress(*columns, console=console) as progress:
            for policy in args.policy:
                for report in Matrix(stage, with_policy(args, policy)).run(prompts, progress):
                    reports[policy] = report | {"seconds": round(time.monotonic() - began, 1)}
                    verbs.write_json(args.json, {"policies": reports})
    printed = Console()
    for policy, report in reports.items():
        printed.print(f"policy {policy}")
        show(report, printed)

    different = differing_policies(reports)
    for policy in different:
        printed.print(f"[red]policy {policy} gives other texts than policy {args.policy[0]}[/]")
    identical = all(report["identical"] for report in reports.values())
    exercised = all(report["exercised"] for policy, report in reports.items() if policy not in args.texts_only)
    if identical and exercised and not different:
        return 0

    return 1


def with_policy(args: argparse.Namespace, policy: str) -> argparse.Namespace:
    """The options of a run with one policy."""
    return argparse.Namespace(**(vars(args) | {"policy": [policy]}))


def differing_policies(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The policies whose texts without a worker are not those of the first policy."""
    expected = next(iter(reports.values()))["texts"]
    return [policy for policy, report in reports.items() if report["texts"] != expected]
