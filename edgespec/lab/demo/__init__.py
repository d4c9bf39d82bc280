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
from edgespec.lab.demo.arms import BASE, REMOTE, Table
from edgespec.lab.demo.measure import Bench, measure, neighbour_factor
from edgespec.lab.demo.plot import plot
from edgespec.lab.demo.report import show, summary
from edgespec.lab.rig import Rig
from edgespec.lab.rig.load import KINDS, Kind, working
from edgespec.lab.rig.neighbour import Neighbour
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
    parser.add_argument("--engine", choices=("torch", "llamacpp"), default="torch", help="what computes the target")
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
    parser.add_argument("--every-k", action="store_true", help="every k of 1 to 16 on every prompt, not the fastest")
    parser.add_argument(
        "--no-neighbour", action="store_true", help="no drafting neighbour beside arms without a worker"
    )
    parser.add_argument("--worker-load", choices=KINDS, default="none", help="other jobs on the worker's core")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures to this file; plots go beside it")
    parser.add_argument("--no-identity", action="store_true", help="skip the comparison of texts in fp32")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep configuration, state and logs in this folder")


def run(options: argparse.Namespace) -> int:
    """Runs the demo; returns 0, or 1 where a text differed. Raises ConfigError before anything is started."""
    console = Console()
    check(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the processes are ended, too
    prompts = read_prompts(options.prompts, options.limit, options.seed)
    draft, target = DRAFTS[options.draft](), target_model(options, console)
    with tempfile.TemporaryDirectory(prefix="edgespec-demo-") as scratch:
        folder = options.keep or Path(scratch)
        with make_rig(folder, str(target), str(draft), options.rtt_ms, options.kernels, engine=options.engine) as rig:
            set_up(rig, console)
            watch(rig, WATCHED, options.max_tokens, console)
            with benched(rig, options.worker_load, neighbour=not options.no_neighbour) as bench:
                factor = neighbour_factor(bench)
                table = compare(bench, prompts, options, console)
            identity = {} if options.no_identity else check_identity(rig, prompts, options.max_tokens, table, console)
    figures = summary(table, identity, context_of(options) | {"neighbour": factor})
    show(figures, console)
    if options.json:
        with _writing(options.json):
            options.json.write_text(json.dumps(figures, indent=2) + "\n")
            plot(figures, options.json)
    return 1 if figures["identical"] is False else 0


def context_of(options: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, as the figures hold it."""
    names = ("engine", "target", "draft", "rtt_ms", "kernels", "max_tokens", "seed", "worker_load")
    blocks = options.blocks if options.target == "deep" else 1
    asked = {name: getattr(options, name) for name in names}
    return asked | {"blocks": blocks, "policy": {"name": "wanspec", "k": 2, "phi": PHI}}


def make_rig(folder: Path, target: str, draft: str, rtt_ms: float, kernels: str = "packed", **more: Any) -> Rig:
    """Gateway and worker on a core each where there are two, with the same draft, and without prefix caches."""
    return Rig(
        folder=folder, target=target, draft=draft, local_draft=draft, rtt_ms=rtt_ms,
        gateway_options={
            "policy.phi": PHI, "target.kernels": kernels,
            "target.prefix_cache": False, "local_draft.prefix_cache": False,
        },
        worker_options={"draft.prefix_cache": False},
        cores=two_cores(),
        **more,
    )  # fmt: skip


def two_cores() -> tuple[int | None, int | None]:
    """Cores of gateway and worker; none where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[1]) if len(cores) > 1 else (None, None)


@contextlib.contextmanager
def benched(rig: Rig, load: Kind, *, neighbour: bool = True) -> Iterator[Bench]:
    """A linked rig with a neighbour, where there is a second core for it, and other jobs on the worker's core."""
    core = rig.cores[1]
    with contextlib.ExitStack() as closing:
        beside = None
        if neighbour and core is not None:
            beside = closing.enter_context(Neighbour(rig.folder, rig.draft, core))
        pids = closing.enter_context(working(load, rig.folder, core, lambda: rig.pid("worker")))
        yield Bench(rig, beside, pids, judged=load != "compile")


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
    source, gguf = models.quantised(), options.engine == "llamacpp"
    if options.target == "plain":
        return source
    models.require_memory(deep_target.memory_bytes(source, options.blocks), "The deep target")
    with contextlib.suppress(ModelError):
        return models.deepened(options.blocks, gguf=gguf)
    with _progress(console) as progress:
        task = progress.add_task("", total=None)

        def show_step(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done // 10**6 or done, total=total // 10**6 or total)

        found = deep_target.make(source, models.model_dir(), options.blocks, show_step)
    console.print(f"[green]✓[/] Made the deep target: {found.equal_tokens} of {found.tokens} tokens equal")
    return models.deepened(options.blocks, gguf=gguf)


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


def compare(bench: Bench, prompts: Sequence[str], options: argparse.Namespace, console: Console) -> Table:
    """Times every arm on every prompt."""
    table = Table()
    with _progress(console) as progress:
        task = progress.add_task("Timing the arms", total=len(prompts))
        for done, so_far in measure(bench, prompts, options.max_tokens, every_k=options.every_k):
            table = so_far
            progress.update(task, completed=done)
    if not table.clean:
        console.print("[yellow]Other processes were busy during every prompt: take the times with care.[/]")
    return table


def check_identity(
    stage: Rig, prompts: Sequence[str], max_tokens: int, table: Table, console: Console
) -> dict[str, list[bool]]:
    """Whether remote and co-located completions equal plain decoding's, with an exact target (in torch in fp32)."""
    stage.restart_gateway("float32")
    arms = list(dict.fromkeys(("plain", BASE, f"colocated_k{table.best_k()}", *REMOTE)))
    with _progress(console) as progress:
        task = progress.add_task("Comparing texts in fp32", total=len(arms) * len(prompts))
        texts: dict[str, list[str]] = {arm: [] for arm in arms}
        for arm in arms:
            for prompt in prompts:
                texts[arm].append(Bench(stage).run(prompt, max_tokens, arm).text)
                progress.advance(task)
    return {arm: [a == b for a, b in zip(texts[arm], texts["plain"], strict=True)] for arm in arms[1:]}


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
