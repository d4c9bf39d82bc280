"""Sources of candidates on the demo's model: plain decoding, co-located k = 2, each source alone, and all merged.

All arms answer each prompt in one process, in turns, each prompt beginning with another arm. No worker is linked: the
local draft takes its place in `merge`, so that every arm has the same machine. Prompts are the tool's own.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from cloud_gateway.core.requests.request import Usage
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import load_models
from edgespec.core.errors import ConfigError
from edgespec.lab.tune.arms import ARMS, Arms
from edgespec.shared.settings import overridden
from tools import options, verbs
from tools.bench.source_prompts import TEXTS

NEEDS = {"medusa": "--heads", "eagle": "--eagle", "self": "--layers, and the engine torch"}
PLAIN = "first arm"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench sources`."""
    parser.add_argument("--text", choices=sorted(TEXTS), nargs="+", default=sorted(TEXTS), help="kinds of prompts")
    parser.add_argument("--limit", type=options.number(int, 1, 100), default=2, help="prompts of each kind")
    parser.add_argument("--engine", choices=("torch", "llamacpp"), default="torch")
    parser.add_argument("--target", default="auto:quantised", help="as target.model")
    parser.add_argument("--draft", default="auto:quantised", help="local draft: GGUF file, or auto:NAME")
    parser.add_argument("--layers", type=int, nargs="+", default=[], help="of the self-draft (tools.calibrate_layers)")
    parser.add_argument("--heads", type=Path, metavar="FILE", help="Medusa heads (tools.train_heads)")
    parser.add_argument("--eagle", type=Path, metavar="FILE", help="EAGLE head (tools.train_heads)")
    parser.add_argument("--arms", choices=tuple(ARMS), nargs="+", help="default: all that can run")
    parser.add_argument("--max-tokens", type=options.number(int, 2, 4096), default=96, help="tokens of each completion")
    parser.add_argument("--threads", type=options.number(int, 0, 512), default=1, help="of each model; 0: the fastest")
    parser.add_argument("--json", type=options.output, metavar="OUT", help="write all figures to this file")


def run(args: argparse.Namespace) -> int:
    """Prints a table; writes figures where asked. 1 where an arm's text is not that of the first arm."""
    rows, same = asyncio.run(measure(args))
    verbs.console().print(verbs.table(rows))
    verbs.console().print("the text was the same in every arm" if same else "the arms' texts differ")
    verbs.write_json(args.json, {"same_text": same, "max_tokens": args.max_tokens, "rows": rows})
    return 0 if same else 1


async def measure(args: argparse.Namespace) -> tuple[list[dict[str, Any]], bool]:
    """A row for each kind of text and arm; whether all arms gave the same text. Raises ConfigError, ModelError."""
    values = {"target.engine": args.engine, "target.threads": args.threads, "target.slots": 1, "target.context": 2048}
    values |= {"target.exact": "yes", "local_draft.model": args.draft, "local_draft.threads": args.threads}
    values |= {"target.model": args.target, "local_draft.layers": args.layers}
    values |= {"sources.medusa": str(args.heads or ""), "sources.eagle": str(args.eagle or "")}
    settings = overridden(GatewaySettings(), values)
    async with Arms(load_models(settings), settings) as arms:
        names = args.arms or arms.names
        if missing := set(names) - set(arms.names):
            raise ConfigError(f"The arm {min(missing)} cannot run: give {NEEDS[min(missing)]}.")
        asked = [(kind, prompt) for kind in args.text for prompt in TEXTS[kind][: args.limit]]
        answers = await arms.compare(names, [prompt for _, prompt in asked], args.max_tokens)
    rows = []
    for kind in args.text:
        of_kind = [answer for (one, _), answer in zip(asked, answers, strict=True) if one == kind]
        base = [answer[names[0]][1] for answer in of_kind]
        rows += [figures(kind, name, [answer[name][1] for answer in of_kind], base) for name in names]
    return rows, all(one[name][0] == one[names[0]][0] for one in answers for name in names)


def figures(kind: str, arm: str, usages: Sequence[Usage], base: Sequence[Usage]) -> dict[str, Any]:
    """Of one arm on one kind of text, sums over the prompts; `base`: the first arm's completions."""
    drafted, accepted = (
        sum((Counter(getattr(usage, name)) for usage in usages), Counter()) for name in ("drafted", "accepted")
    )
    return {
        "text": kind,
        "arm": arm,
        "tokens / round": round(sum(u.completion_tokens for u in usages) / max(sum(u.rounds for u in usages), 1), 2),
        "accepted / drafted": round(accepted.total() / drafted.total(), 3) if drafted else None,
        "ms / token": round(median(map(_ms, usages)), 2),
        f"/ {PLAIN}": round(median(_ms(one) / _ms(other) for one, other in zip(usages, base, strict=True)), 3),
        "local passes": sum(usage.local_draft_passes for usage in usages),
        "accepted": ", ".join(f"{source} {count}" for source, count in accepted.most_common()),
    }


def _ms(usage: Usage) -> float:
    """Milliseconds per token of decoding, the local draft's reading included."""
    return 1000 * usage.decode_s / max(usage.completion_tokens - 1, 1)
