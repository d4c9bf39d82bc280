"""Sources of candidates on the demo's model: plain decoding, co-located k = 2, lookup, a draft, and both merged.

All arms answer each prompt in one process, in turns, each prompt beginning with another arm. No worker is linked: the
local draft takes its place in `merge`, so that every arm has the same machine. Prompts are the tool's own.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from cloud_gateway.core.requests.request import GenerationRequest, Speculation, TokensEvent, Usage
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.text import Text
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings, load_models
from edgespec.core.errors import ModelError
from edgespec.core.protocol.messages import Sampling
from edgespec.shared.settings import overridden
from tools import options, verbs
from tools.bench.source_prompts import TEXTS

ARMS: Mapping[str, Speculation] = {
    "plain": Speculation(policy="plain"),
    "colocated_k2": Speculation(policy="colocated", k=2),
    "lookup": Speculation(policy="adaptive", prefer="offload", sources=("lookup",)),
    "draft": Speculation(policy="adaptive", prefer="latency", sources=()),
    "merge": Speculation(policy="adaptive", prefer="latency", sources=("lookup",)),
}
ALONE = ("plain", "lookup")
"""Arms that run in an engine without a draft model."""
PLAIN = "first arm"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench sources`."""
    parser.add_argument("--text", choices=sorted(TEXTS), nargs="+", default=sorted(TEXTS), help="kinds of prompts")
    parser.add_argument("--limit", type=options.number(int, 1, 100), default=2, help="prompts of each kind")
    parser.add_argument("--engine", choices=("torch", "llamacpp"), default="torch")
    parser.add_argument("--draft", default="auto:quantised", help="local draft: GGUF file, or auto:NAME")
    parser.add_argument("--arms", choices=tuple(ARMS), nargs="+", default=list(ARMS))
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
    """A row for each kind of text and arm; whether all arms gave the same text. Raises ModelError."""
    values = {"target.engine": args.engine, "target.threads": args.threads, "target.slots": 1, "target.context": 2048}
    values |= {"target.exact": "yes", "local_draft.model": args.draft, "local_draft.threads": args.threads}
    settings = overridden(GatewaySettings(), values)
    loaded = load_models(settings)
    alone, drafting = (Engine(loaded.target, draft, engine_settings(settings)) for draft in (None, loaded.local))
    engines = {arm: alone if arm in ALONE else drafting for arm in args.arms}
    alone.start()
    drafting.start()
    try:
        await _answer(drafting, _chat(loaded.text, "Count to ten."), ARMS["colocated_k2"], 24)  # curves fill
        await _answer(alone, _chat(loaded.text, "Count to ten."), ARMS["lookup"], 24)
        found: dict[tuple[str, str], list[Usage]] = {}
        same = True
        for kind in args.text:
            for number, prompt in enumerate(TEXTS[kind][: args.limit]):
                shift, texts = number % len(args.arms), []
                for arm in [*args.arms[shift:], *args.arms[:shift]]:
                    tokens, usage = await _answer(engines[arm], _chat(loaded.text, prompt), ARMS[arm], args.max_tokens)
                    texts.append(tokens)
                    found.setdefault((kind, arm), []).append(usage)
                same = same and all(text == texts[0] for text in texts)
        return [figures(kind, arm, found[kind, arm], found[kind, args.arms[0]]) for kind, arm in found], same
    finally:
        alone.stop()
        drafting.stop()


def _chat(text: Text, prompt: str) -> list[int]:
    return text.render_chat([{"role": "user", "content": prompt}])


async def _answer(
    engine: Engine, prompt: Sequence[int], speculation: Speculation, count: int
) -> tuple[list[int], Usage]:
    """One greedy completion."""
    tokens: list[int] = []
    wanted = GenerationRequest(prompt, count, Sampling(temperature=0), speculation=speculation)
    async for event in engine.submit(wanted):
        if isinstance(event, TokensEvent):
            tokens += event.tokens
            continue
        if event.error is not None:
            raise ModelError(event.error)
        return tokens, event.usage
    raise AssertionError("a stream ends with a DoneEvent")


def figures(kind: str, arm: str, usages: Sequence[Usage], base: Sequence[Usage]) -> dict[str, Any]:
    """Of one arm on one kind of text, sums over the prompts; `base`: the first arm's completions."""
    drafted = sum(sum(usage.drafted.values()) for usage in usages)
    accepted = sum(sum(usage.accepted.values()) for usage in usages)
    return {
        "text": kind,
        "arm": arm,
        "tokens / round": round(sum(u.completion_tokens for u in usages) / max(sum(u.rounds for u in usages), 1), 2),
        "accepted / drafted": round(accepted / drafted, 3) if drafted else None,
        "ms / token": round(median(map(_ms, usages)), 2),
        f"/ {PLAIN}": round(median(_ms(one) / _ms(other) for one, other in zip(usages, base, strict=True)), 3),
        "local passes": sum(usage.local_draft_passes for usage in usages),
        "lookup accepted": sum(usage.sources.get("lookup", {}).get("accepted", 0) for usage in usages),
    }


def _ms(usage: Usage) -> float:
    """Milliseconds per token of decoding, the local draft's reading included."""
    return 1000 * usage.decode_s / max(usage.completion_tokens - 1, 1)
