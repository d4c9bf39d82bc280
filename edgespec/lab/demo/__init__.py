"""`edgespec demo`: gateway and worker on this machine, paired over a delayed link, and a comparison.

The target is SmolLM2-135M in torch; the draft is the same model quantised (match rate about 95 %), quantised again into
a faster format (75-80 %), or with a layer dropped (60-70 %). They represent a large target and a small draft: the
relative results and the identity of the texts carry over, the milliseconds do not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from edgespec.core.errors import ConfigError, ModelError
from edgespec.lab import deep_target
from edgespec.lab.demo.arms import ARMS, KS, REMOTE, Table, answers, measure
from edgespec.lab.demo.report import show, summary
from edgespec.lab.rig import Rig
from edgespec.shared import models

PROMPTS = Path(__file__).with_name("prompts.jsonl")
WATCHED = "Tell me in a few sentences how a lighthouse works."
"""Streamed before the timing; not one of the prompts, so that each of those is new to the worker."""
DRAFTS = {"quantised": models.quantised, "requantised": models.requantised, "dropped": models.dropped}
PHI = 3.0
"""Entropy threshold for this small target: 81 % of its positions exceed the papers' 0.5 nats."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `edgespec demo`."""
    parser.add_argument("--draft", choices=tuple(DRAFTS), default="quantised", help="which draft model")
    parser.add_argument("--target", choices=("plain", "deep"), default="plain", help="deep: a pass costs several times")
    parser.add_argument("--blocks", type=int, default=4, help="blocks for each one of the deep target")
    parser.add_argument("--rtt-ms", type=float, default=20.0, help="round trip of the link in milliseconds")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSON lines: `prompt` or `turns`")
    parser.add_argument("--limit", type=int, default=3, help="prompts to use")
    parser.add_argument("--max-tokens", type=int, default=64, help="answer tokens of each prompt")
    parser.add_argument("--seed", type=int, default=1, help="which prompts are drawn, and in which order")
    parser.add_argument(
        "--kernels",
        choices=("packed", "plain"),
        default="packed",
        help="the target's products: packed is the faster target",
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures to this file")
    parser.add_argument("--no-identity", action="store_true", help="skip the comparison of texts in fp32")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep configuration, state and logs in this folder")


def run(options: argparse.Namespace) -> int:
    """Runs the demo; returns 0, or 1 where a text differed. Raises ConfigError before anything is started."""
    console = Console()
    check(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the processes are ended, too
    prompts = read_prompts(options.prompts, options.limit, options.seed)
    draft = DRAFTS[options.draft]()
    target = target_model(options, console)
    with (
        tempfile.TemporaryDirectory(prefix="edgespec-demo-") as scratch,
        Rig(
            folder=options.keep or Path(scratch),
            target=str(target),
            draft=str(draft),
            local_draft=str(draft),
            rtt_ms=options.rtt_ms,
            gateway_options={
                "policy.phi": PHI,
                "target.kernels": options.kernels,
                "target.prefix_cache": False,
                "local_draft.prefix_cache": False,
            },
            worker_options={"draft.prefix_cache": False},
            cores=(0, 1) if (os.cpu_count() or 1) > 1 else (None, None),
        ) as stage,
    ):
        set_up(stage, console)
        watch(stage, WATCHED, options.max_tokens, console)
        table = compare(stage, prompts, options.max_tokens, console)
        identity = {} if options.no_identity else check_identity(stage, prompts, options.max_tokens, table, console)
    context = {
        "target": options.target,
        "blocks": options.blocks if options.target == "deep" else 1,
        "draft": options.draft,
        "rtt_ms": options.rtt_ms,
        "kernels": options.kernels,
        "max_tokens": options.max_tokens,
        "seed": options.seed,
        "policy": {"name": "wanspec", "k": 2, "phi": PHI},
    }
    figures = summary(table, identity, context)
    show(figures, console)
    if options.json:
        with _writing(options.json):
            options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if figures["identical"] is False else 0


def check(options: argparse.Namespace) -> None:
    """Raises ConfigError for options that would fail only after minutes, or give meaningless results."""
    for name, value, low, high in (
        ("rtt-ms", options.rtt_ms, 0, 10_000),
        ("limit", options.limit, 1, 1_000_000),
        ("max-tokens", options.max_tokens, 1, 1024),
        ("blocks", options.blocks, deep_target.MIN_BLOCKS, deep_target.MAX_BLOCKS),
    ):
        if not low <= value <= high:  # NaN too
            raise ConfigError(f"--{name} is {value:g}, but must be a number from {low} to {high}.")
    if options.json and not options.json.resolve().parent.is_dir():
        raise ConfigError(f"--json is {options.json}, but there is no such folder; make it, or name another file.")
    if options.keep:
        with _writing(options.keep):
            options.keep.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror or error}); name another path.") from None


def target_model(options: argparse.Namespace, console: Console) -> Path:
    """The target's file or folder; a deep one is made where it is missing. Raises ModelError, ConfigError."""
    source = models.quantised()
    if options.target == "plain":
        return source
    models.require_memory(deep_target.memory_bytes(source, options.blocks), "The deep target")
    with contextlib.suppress(ModelError):
        return models.deepened(options.blocks)
    with _progress(console) as progress:
        task = progress.add_task("", total=None)

        def show_step(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done // 10**6 or done, total=total // 10**6 or total)

        found = deep_target.make(source, models.model_dir(), options.blocks, show_step)
    console.print(f"[green]✓[/] Made the deep target: {found.equal_tokens} of {found.tokens} tokens equal")
    return models.deepened(options.blocks)


def read_prompts(path: Path, limit: int, seed: int) -> list[str]:
    """Up to `limit` prompts, drawn with the seed. Raises ConfigError naming the line that cannot be used."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"The prompts in {path} cannot be read: {error.strerror}.") from error
    prompts = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            prompts.append(str(entry["prompt"] if "prompt" in entry else entry["turns"][0]))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ConfigError(f"Line {number} of {path} is no JSON object with `prompt` or `turns`.") from error
    if not prompts or limit < 1:
        raise ConfigError(f"There are no prompts to use: {path} has {len(prompts)}, and --limit is {limit}.")
    return random.Random(seed).sample(prompts, min(limit, len(prompts)))


def set_up(stage: Rig, console: Console) -> None:
    """Starts gateway, key, delayed link, pairing and worker; prints each step."""
    for text, step in stage.steps():
        with console.status(text):
            step()
        console.print(f"[green]✓[/] {text}", highlight=False)


def watch(stage: Rig, prompt: str, max_tokens: int, console: Console) -> None:
    """Streams one completion to the terminal."""
    console.print(f"\n[bold]{prompt}[/]\n", highlight=False)
    usage: dict[str, Any] = {}
    for chunk in stage.stream(prompt, max_tokens, policy="adaptive"):
        for choice in chunk["choices"]:
            console.print(choice["delta"].get("content") or "", end="", markup=False, highlight=False, soft_wrap=True)
        usage = chunk.get("usage") or usage
    extension = usage["edgespec"]
    console.print(
        f"\n\n{usage['completion_tokens']} tokens from {extension['rounds']} passes of the target; "
        f"{extension['accepted'].get('worker', 0)} were drafted by the worker.\n",
        highlight=False,
    )


def compare(stage: Rig, prompts: Sequence[str], max_tokens: int, console: Console) -> Table:
    """Times every arm on every prompt."""
    table = Table()
    with _progress(console) as progress:
        task = progress.add_task(f"Timing {len(ARMS)} arms in bf16", total=len(prompts))
        for done, so_far in measure(stage, prompts, max_tokens, list(ARMS)):
            table = so_far
            progress.update(task, completed=done)
    if not table.clean:
        console.print("[yellow]Other processes were busy during every prompt: take the times with care.[/]")
    return table


def check_identity(
    stage: Rig, prompts: Sequence[str], max_tokens: int, table: Table, console: Console
) -> dict[str, list[bool]]:
    """Whether remote and co-located completions equal plain decoding's, with the target in fp32."""
    stage.restart_gateway("float32")
    best_k = min(KS, key=lambda k: table.median(f"colocated_k{k}", lambda run: run.ms_per_token))
    arms = list(dict.fromkeys(("plain", "colocated_k2", f"colocated_k{best_k}", *REMOTE)))
    with _progress(console) as progress:
        task = progress.add_task("Comparing texts in fp32", total=len(arms) * len(prompts))
        texts: dict[str, list[str]] = {arm: [] for arm in arms}
        for arm in arms:
            for text in answers(stage, prompts, max_tokens, arm):
                texts[arm].append(text)
                progress.advance(task)
    return {arm: [a == b for a, b in zip(texts[arm], texts["plain"], strict=True)] for arm in arms[1:]}


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
