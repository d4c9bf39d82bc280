"""`edgespec demo`: gateway and worker on this machine, paired over a delayed link, and a comparison.

The target is SmolLM2-135M, in torch if the gateway has that part; the draft is the same model quantised (match rate
about 95 %), quantised again into a faster format (71-78 %), or with a layer dropped (60-70 %). They represent a large
target and a small draft: the relative results and the identity of the texts carry over, the milliseconds do not.
`--target gemma --draft smollm`, or the reverse, is a pair of two tokenizers, of which the drafts are translated.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from edgespec.core.errors import ConfigError
from edgespec.shared.installed import require
from edgespec_lab.choices import gateway_choices
from edgespec_lab.demo.arms import BASE, COMPARED, PHI, REMOTE, Bench, Table, measure
from edgespec_lab.demo.report import show, summary
from edgespec_lab.demo.scene import (
    DRAFTS,
    PROMPTS,
    TARGETS,
    benched,
    make_rig,
    progress,
    read_prompts,
    usual_engine,
    writing,
)  # fmt: skip
from edgespec_lab.rig import LLAMACPP, TORCH, Rig

WATCHED = "Tell me in a few sentences how a lighthouse works."
"""Streamed before the timing; not one of the prompts, so that each of those is new to the worker."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.add_argument("--target", choices=tuple(TARGETS), default="smollm", help="which target model")
    parser.add_argument("--draft", choices=tuple(DRAFTS), default="quantised", help="which draft model")
    parser.add_argument("--engine", choices=("torch", "llamacpp"), help="what computes the target")
    parser.add_argument("--rtt-ms", type=float, default=20.0, metavar="MS", help="round trip of the link")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSON lines: `prompt` or `turns`")
    parser.add_argument("--limit", type=int, default=3, help="prompts to use")
    parser.add_argument("--max-tokens", type=int, default=64, help="answer tokens of each prompt")
    parser.add_argument("--seed", type=int, default=1, help="which prompts are drawn, and in which order")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures to this file")
    parser.add_argument("--no-identity", action="store_true", help="skip the comparison of texts")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep configuration, state and logs in this folder")


def run(options: argparse.Namespace) -> int:
    """Runs the demo; returns 0, or 1 if a text differed. Raises ConfigError before anything is started."""
    console = Console() if sys.stdout.isatty() else Console(width=120)  # of a file
    text = options.target == "gemma"
    if options.engine is None and text:
        options.engine = LLAMACPP
    elif options.engine is None:
        options.engine = usual_engine()

    check(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the processes are ended, too
    prompts = read_prompts(options.prompts, options.limit, options.seed)
    draft = DRAFTS[options.draft]()
    target = TARGETS[options.target]()
    with tempfile.TemporaryDirectory(prefix="edgespec-demo-") as scratch:
        folder = options.keep or Path(scratch)
        with make_rig(folder, str(target), str(draft), options.rtt_ms, engine=options.engine, text=text) as rig:
            set_up(rig, console)
            watch(rig, WATCHED, options.max_tokens, console)
            with benched(rig) as bench:
                table = compare(bench, prompts, options, console)
            identity = {} if options.no_identity else check_identity(rig, prompts, options.max_tokens, console)
    figures = summary(table, identity, context_of(options))
    show(figures, console)
    if options.json:
        with writing(options.json):
            options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if figures["identical"] is False:
        return 1

    return 0


def context_of(options: argparse.Namespace) -> dict[str, Any]:
    """The options, as the figures hold them."""
    names = ("engine", "target", "draft", "max_tokens", "seed", "rtt_ms")
    return {name: getattr(options, name) for name in names} | {"policy": {"name": "wanspec", "k": 2, "phi": PHI}}


def check(options: argparse.Namespace) -> None:
    """Raises ConfigError for options that would fail only after minutes, or give meaningless results."""
    require("aiohttp", "llama_cpp", "transformers")  # of the gateway, a process of its own
    if options.engine == TORCH:
        require("torch")
    gateway_choices(*COMPARED)

    for name, value, low, high in (
        ("rtt-ms", options.rtt_ms, 0, 10_000),
        ("limit", options.limit, 1, 1_000_000),
        ("max-tokens", options.max_tokens, 1, 1024),
    ):
        if not low <= value <= high:  # NaN too
            raise ConfigError(f"--{name} is {value:g}, but must be a number from {low} to {high}.")
    if options.json and not options.json.resolve().parent.is_dir():
        raise ConfigError(f"--json is {options.json}, but there is no such folder; make it, or name another file.")

    if options.keep:
        with writing(options.keep):
            options.keep.mkdir(parents=True, exist_ok=True)


def set_up(stage: Rig, console: Console) -> None:
    """Starts gateway, key, delayed link, pairing and worker; prints each step."""
    for text, step in stage.steps():
        with console.status(text):
            step()
        console.print(f"[green]✓[/] {text}", highlight=False)


def watch(stage: Rig, prompt: str, max_tokens: int, console: Console) -> None:
    console.print(f"\n{prompt}\n", style="bold", markup=False, highlight=False)
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


def compare(bench: Bench, prompts: Sequence[str], options: argparse.Namespace, console: Console) -> Table:
    table = Table()
    with progress(console) as bar:
        task = bar.add_task("Timing the arms", total=len(prompts))
        for done, so_far in measure(bench, prompts, options.max_tokens):
            table = so_far
            bar.update(task, completed=done)
    return table


def check_identity(stage: Rig, prompts: Sequence[str], max_tokens: int, console: Console) -> dict[str, list[bool]]:
    """Whether remote and co-located completions equal plain decoding's, with an exact target."""
    stage.restart_gateway(exact=True)
    arms = ["plain", BASE, *REMOTE]
    with progress(console) as bar:
        task = bar.add_task("Comparing texts of an exact target", total=len(arms) * len(prompts))
        texts: dict[str, list[str]] = {arm: [] for arm in arms}
        for arm in arms:
            for prompt in prompts:
                texts[arm].append(Bench(stage).run(prompt, max_tokens, arm).text)
                bar.advance(task)

    return {arm: [a == b for a, b in zip(texts[arm], texts["plain"], strict=True)] for arm in arms[1:]}
