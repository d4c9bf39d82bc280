"""Ours and llama.cpp's own server on the same model, cores and prompts, in turns (minutes).

Each prompt is answered by every arm, beginning with another one each time; a first short completion of each arm is not
counted. Our arms have one core for the gateway and, where they use one, another for the worker; peers have one core, or
both. All are asked greedily through their streaming chat APIs by one client, with prompt caches off.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from edgespec.core.errors import ConfigError
from edgespec.models.drafts import FORMATS, make_draft
from edgespec.shared import models
from edgespec_lab import deep_target, verbs
from edgespec_lab.choices import gateway_choices
from edgespec_lab.demo import DRAFTS, PROMPTS, read_prompts
from edgespec_lab.demo.scene import progress
from edgespec_lab.options import known, number, output, several
from edgespec_lab.rig.chat import Prompt
from tools import peers
from tools.bench.live import arms, report
from tools.bench.live.arms import Arm
from tools.bench.live.report import Batch
from tools.bench.live.systems import Scene, Systems, started, versions, warm_up

PROMPT_ROOM = 512
"""Tokens of context beside the completion's; MT-Bench's first turns have fewer."""
DEFAULT_ARMS = "plain,colocated,remote,ngram,llama-server,llama-server-draft,llama-server-ngram"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench live`."""
    words = several(known(arms.FAMILIES, "arm"))
    numbers = several(number(int, 1, 16))
    parser.add_argument("--arms", type=words, default=words(DEFAULT_ARMS), help=f"of {', '.join(arms.FAMILIES)}")
    parser.add_argument("--engine", choices=("torch", "llamacpp"), default="llamacpp", help="what computes our target")
    parser.add_argument("--target", choices=("plain", "deep"), default="deep", help="deep: a pass costs several times")
    parser.add_argument("--blocks", type=deep_target.BLOCKS, default=4)
    parser.add_argument("--format", choices=("as-is", *FORMATS), default="as-is", help="weights of the GGUF target")
    parser.add_argument("--model", type=Path, help="another GGUF target, for ours and peers")
    parser.add_argument("--draft", default="requantised", help=f"{', '.join(DRAFTS)}, or a GGUF file")
    parser.add_argument("--k", type=numbers, default=(1, 2, 3, 4, 6, 8), help="depths of co-located drafting")
    parser.add_argument("--peer-k", type=numbers, default=(2, 3, 4, 8), help="the peer's --spec-draft-n-max")
    types = several(known(arms.NGRAM_TYPES, "n-gram type"))
    listed = ", ".join(arms.NGRAM_TYPES)
    parser.add_argument("--ngram-types", type=types, default=("simple", "mod"), help=f"of {listed}")
    parser.add_argument(
        "--cores", type=several(number(int, 1, 2)), default=(1, 2), help="of each peer: 1, 2 or both settings"
    )
    parser.add_argument(
        "--levels", "--clients", dest="clients", type=several(number(int, 1, 64)), default=(1,), metavar="N[,N...]",
        help="completions at once",
    )  # fmt: skip
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSON lines: `prompt` or `turns`")
    parser.add_argument("--limit", type=number(int, 1, 1000), default=3, help="prompts for each `--clients`")
    parser.add_argument("--max-tokens", type=number(int, 2, 1024), default=48)
    parser.add_argument("--rtt-ms", type=number(float, 0, 10_000), default=15.0)
    parser.add_argument("--seed", type=int, default=1, help="which prompts are drawn, and in which order")
    parser.add_argument("--minutes", type=float, default=240.0, help="begin no batch of prompts later")
    parser.add_argument("--no-neighbour", action="store_true", help="no drafting neighbour beside arms on one core")
    parser.add_argument("--json", type=output, metavar="OUT", help="all figures; OUT.md beside it")


def run(options: argparse.Namespace) -> int:
    """Prints a table; writes figures where asked. Raises ConfigError, ModelError, RigError."""
    console = verbs.console()
    wanted = arms.chosen(options.arms, options.k, options.peer_k, options.ngram_types, options.cores)
    gateway_choices(*(str(arm.asks["policy"]) for arm in wanted if "policy" in arm.asks))
    levels = sorted(set(options.clients))
    work = arms.batches(read_prompts(options.prompts, sys.maxsize, options.seed), levels, int(options.limit))
    scene = scene_of(options, any(arm.peer for arm in wanted), console)
    with (
        tempfile.TemporaryDirectory(prefix="edgespec-live-") as folder,
        started(scene, wanted, Path(folder)) as systems,
    ):
        warm_up(systems, wanted, levels, options.max_tokens)
        with progress(console) as bar:
            task = bar.add_task("live", total=len(work) * len(wanted))
            for found in measured(systems, wanted, work, options.max_tokens, options.minutes * 60):
                bar.update(task, completed=len(found))
                figures = report.summary(wanted, found, context(options, scene))
                verbs.write_json(options.json, figures)
    print(report.markdown(figures))
    if options.json:
        options.json.with_suffix(".md").write_text(report.markdown(figures), encoding="utf-8")
    return 0


def measured(
    systems: Systems, wanted: Sequence[Arm], work: Sequence[tuple[int, Sequence[Prompt]]], max_tokens: int,
    at_most_s: float,
) -> Iterator[list[Batch]]:  # fmt: skip
    """Every batch of prompts by every arm, in turns; all that was found, after each batch of prompts.

    No batch of prompts begins after `at_most_s`, but the first one always does.
    """
    found: list[Batch] = []
    began = time.monotonic()
    for turn, (_, prompts) in enumerate(work):
        if found and time.monotonic() - began > at_most_s:
            return
        for arm in arms.turns(wanted, turn):
            found.append(systems.ask(arm, prompts, max_tokens, turn))
        yield found


def scene_of(options: argparse.Namespace, peer: bool, console: Console) -> Scene:
    """Files and settings; deep and requantised targets are made where they are missing. Raises ModelError."""
    llama_server = peers.llama_server() if peer else None
    ours, gguf = targets_of(options, console)
    draft = draft_of(options.draft)
    return Scene(
        engine=options.engine, target=ours, peer_target=gguf, draft=draft, rtt_ms=options.rtt_ms,
        slots=max(options.clients), context=256 * -(-(PROMPT_ROOM + options.max_tokens) // 256),
        neighbour=not options.no_neighbour, llama_server=llama_server,
    )  # fmt: skip


def targets_of(options: argparse.Namespace, console: Console) -> tuple[Path, Path]:
    """Our target, and the GGUF file of the same model; what is missing is made. Raises ConfigError, ModelError."""
    gguf = options.model or deep_target.target_model(_as(options, engine="llamacpp"), console)
    if not gguf.is_file():
        raise ConfigError(f"--model is {gguf}, but there is no such file; name a GGUF file.")
    if options.format != "as-is":
        gguf = _formatted(gguf, options.format, console)
    return gguf if options.model or options.engine == "llamacpp" else deep_target.target_model(options, console), gguf


def draft_of(named: str) -> Path:
    """The draft's file. Raises ConfigError, ModelError."""
    draft = DRAFTS[named]() if named in DRAFTS else Path(named)
    if not draft.is_file():
        raise ConfigError(f"--draft is {named}, but must be {', '.join(DRAFTS)} or a GGUF file.")
    return draft


def _as(options: argparse.Namespace, **changed: Any) -> argparse.Namespace:
    return argparse.Namespace(**(vars(options) | changed))


def _formatted(gguf: Path, fmt: str, console: Console) -> Path:
    """The target in another format, beside the demo's models."""
    made = models.model_dir() / models.requantised_name(gguf.name, fmt)
    if not made.is_file():
        console.print(f"Writing {made.name}")
        make_draft(gguf, made, fmt=fmt)
    return made


def context(options: argparse.Namespace, scene: Scene) -> dict[str, Any]:
    """What was asked for, and of which machine."""
    names = ("engine", "format", "rtt_ms", "limit", "max_tokens", "clients", "k", "peer_k", "seed")
    asked = {name: getattr(options, name) for name in names} | versions(scene)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return asked | {"llama_cpp_python": version("llama-cpp-python"), "machine": machine}
