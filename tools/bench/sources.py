"""Sources of candidates on the demo's model: plain decoding, co-located k = 2, each source alone, and all merged.

All arms answer each prompt in one process, in turns, each prompt beginning with another arm. No worker is linked: the
local draft takes its place in `merge`, so that every arm has the same machine. Times are of decoding: a row has the
median over its prompts, and the median of the ratios on the same prompt to plain decoding, to co-located k = 2, and to
the fastest source alone.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from cloud_gateway.core.requests.request import Usage
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import load_models
from edgespec.core.errors import ConfigError
from edgespec.lab.demo.scene import progress, read_lines
from edgespec.lab.tune.arms import ARMS, Arms
from edgespec.shared.settings import overridden
from tools import deep_target, options, verbs
from tools.bench.source_prompts import TEXTS
from tools.pictures import bars, drawn

NEEDS = {"medusa": "--heads", "eagle": "--eagle", "self": "--layers, and the engine torch"}
BASES = {"/ plain": "plain", "/ k = 2": "colocated"}
"""Column -> arm whose times the others' are compared with."""
TOGETHER = (*BASES.values(), "merge")
"""Arms that are no source alone."""
TARGETS = ("plain", "deep")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench sources`."""
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="JSON lines: `prompt` or `turns`; `kind` (chat)")
    parser.add_argument("--text", choices=tuple(TEXTS), nargs="+", default=list(TEXTS), help="kinds of prompts")
    parser.add_argument("--limit", type=options.number(int, 1, 1000), help="prompts of each kind (default: all)")
    parser.add_argument("--engine", choices=("torch", "llamacpp"), default="torch")
    parser.add_argument("--target", default="plain", help="plain, deep (a pass costs several times), or target.model")
    parser.add_argument("--blocks", type=options.number(int, deep_target.MIN_BLOCKS, deep_target.MAX_BLOCKS), default=4)
    parser.add_argument("--draft", default="auto:quantised", help="local draft: GGUF file, or auto:NAME")
    parser.add_argument("--layers", type=int, nargs="+", default=[], help="of the self-draft (tools.train layers)")
    parser.add_argument("--heads", type=Path, metavar="FILE", help="Medusa heads (tools.train medusa)")
    parser.add_argument("--eagle", type=Path, metavar="FILE", help="EAGLE head (tools.train eagle)")
    parser.add_argument("--arms", choices=tuple(ARMS), nargs="+", help="default: all that can run")
    parser.add_argument("--max-tokens", type=options.number(int, 2, 4096), default=96, help="tokens of each completion")
    parser.add_argument("--threads", type=options.number(int, 0, 512), default=1, help="of each model; 0: the fastest")
    parser.add_argument("--json", type=options.output, metavar="OUT", help="write all figures, and OUT.png, OUT.svg")


def run(args: argparse.Namespace) -> int:
    """Prints a table; writes figures and a plot where asked. 1 where an arm's text is not that of the first arm."""
    rows, same = asyncio.run(measure(args, prompts_of(args)))
    verbs.console().print(verbs.table(rows))
    verbs.console().print("the text was the same in every arm" if same else "the arms' texts differ")
    setting = {name: getattr(args, name) for name in ("engine", "target", "draft", "layers", "threads", "max_tokens")}
    setting |= {"prompts": args.prompts and str(args.prompts)}
    verbs.write_json(args.json, setting | {"same_text": same, "rows": rows})
    if args.json is not None:
        drawn(args.json, (11, 4), partial(_draw, rows))
    return 0 if same else 1


def prompts_of(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Kind and text of each prompt that was asked for. Raises ConfigError."""
    if args.prompts is None:
        asked = [(kind, prompt) for kind, prompts in TEXTS.items() for prompt in prompts]
    else:
        asked = [(line.kind, line.prompt) for line in read_lines(args.prompts)]
    if unknown := {kind for kind, _ in asked} - set(TEXTS):
        raise ConfigError(f"{args.prompts} has a prompt of the kind {min(unknown)}; there are {', '.join(TEXTS)}.")
    found = [one for kind in args.text for one in [one for one in asked if one[0] == kind][: args.limit]]
    if not found:
        raise ConfigError(f"{args.prompts} has no prompt of the kind {' or '.join(args.text)}.")
    return found


async def measure(args: argparse.Namespace, asked: Sequence[tuple[str, str]]) -> tuple[list[dict[str, Any]], bool]:
    """A row for each kind of text and arm; whether all arms gave the same text. Raises ConfigError, ModelError."""
    console = Console(stderr=True)
    target = str(deep_target.target_model(args, console)) if args.target in TARGETS else args.target
    values = {"target.engine": args.engine, "target.threads": args.threads, "target.slots": 1, "target.context": 2048}
    values |= {"target.exact": "yes", "local_draft.model": args.draft, "local_draft.threads": args.threads}
    values |= {"target.model": target, "local_draft.layers": args.layers}
    values |= {"sources.heads": [str(file) for file in (args.heads, args.eagle) if file]}
    settings = overridden(GatewaySettings(), values)
    async with Arms(load_models(settings), settings) as arms:
        names = args.arms or arms.names
        if missing := set(names) - set(arms.names):
            raise ConfigError(f"The arm {min(missing)} cannot run: give {NEEDS[min(missing)]}.")
        with progress(console) as bar:
            task = bar.add_task("completions", total=len(names) * (len(asked) + 1))
            prompts = [prompt for _, prompt in asked]
            answers = await arms.compare(names, prompts, args.max_tokens, lambda: bar.advance(task))
    same = all(one[name][0] == one[names[0]][0] for one in answers for name in names)
    rows: list[dict[str, Any]] = []
    for kind in dict.fromkeys(kind for kind, _ in asked):
        own = [answer for (one, _), answer in zip(asked, answers, strict=True) if one == kind]
        rows += figures(kind, {name: [answer[name][1] for answer in own] for name in names})
    if not rows:
        raise ConfigError("No completion took a time that could be compared: ask for more tokens.")
    return rows, same


def figures(kind: str, arms: Mapping[str, Sequence[Usage]]) -> list[dict[str, Any]]:
    """A row for each arm, from its completions of the same prompts; those without a time are left out."""
    timed = [place for place, every in enumerate(zip(*arms.values(), strict=True)) if min(map(decode_ms, every))]
    kept = {name: [usages[place] for place in timed] for name, usages in arms.items()}
    if not timed:
        return []
    bases = {shown: kept[base] for shown, base in BASES.items() if base in kept}
    if alone := [usages for name, usages in kept.items() if name not in TOGETHER]:
        bases["/ best source"] = min(alone, key=lambda usages: median(map(decode_ms, usages)))
    return [_row(kind, name, usages, bases) for name, usages in kept.items()]


def decode_ms(usage: Usage) -> float:
    """Milliseconds per token once target and local draft have read the prompt; 0 where nothing was timed."""
    return 1000 * usage.times.decode_s / max(usage.completion_tokens, 1)


def _row(kind: str, arm: str, usages: Sequence[Usage], bases: Mapping[str, Sequence[Usage]]) -> dict[str, Any]:
    drafted, accepted = (
        sum((Counter[str](getattr(one, name)) for one in usages), Counter()) for name in ("drafted", "accepted")
    )
    tokens, rounds = (sum(getattr(one, name) for one in usages) for name in ("completion_tokens", "rounds"))
    return {
        "text": kind,
        "arm": arm,
        "prompts": len(usages),
        "tokens / round": round(tokens / max(rounds, 1), 2),
        "accepted / drafted": round(accepted.total() / drafted.total(), 3) if drafted else None,
        "ms / token": round(median(map(decode_ms, usages)), 2),
        **{
            shown: round(median(decode_ms(a) / decode_ms(b) for a, b in zip(usages, base, strict=True)), 3)
            for shown, base in bases.items()
        },
        "local passes": sum(usage.local_draft_passes for usage in usages),
        "accepted": ", ".join(f"{source} {count}" for source, count in accepted.most_common()),
    }


def _draw(rows: Sequence[Mapping[str, Any]], figure: Any) -> None:
    time, gain = figure.subplots(1, 2)
    for axes, column in ((time, "ms / token"), (gain, "tokens / round")):
        bars(axes, rows, "text", "arm", column)
        axes.set_ylabel(column)
    figure.legend(*time.get_legend_handles_labels(), loc="outside lower center", ncols=len(ARMS), fontsize=7)
