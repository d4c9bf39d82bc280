"""`python -m tools.parts.draft_heads HEADS ... --layers 0 1 28 29`: what heads and a self-draft save (minutes).

`HEADS` are files that `python -m edgespec_lab.train` wrote; `--layers` are those of a self-draft. Each prompt is
answered once by each arm, greedily, in turns: plain decoding, a local draft model, the heads, the self-draft, each
alone with policy `adaptive`. The target is exact, so that texts have to be equal: exit status 1 if one is not. `right`
is the part of the verified candidates that the target chose; times are of decoding, and their ratios medians over
prompts.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from cloud_gateway.core.requests.request import GenerationRequest, Speculation, Usage
from cloud_gateway.core.sources.asking import MAKERS
from cloud_gateway.engine.loop import Engine
from cloud_gateway.part import choices_of
from cloud_gateway.parts import all_parts
from cloud_gateway.process.config import schema
from cloud_gateway.process.loading import LoadedModels, engine_settings, load_models, measure
from edgespec.core.protocol.messages import Sampling
from edgespec.shared.settings import overridden
from edgespec_lab.demo.arms import rotated
from edgespec_lab.demo.scene import PROMPTS, read_prompts
from edgespec_lab.markdown import table

GREEDY = Sampling(temperature=0.0)
PLAIN = Speculation(policy="plain")
LOCAL = Speculation(policy="adaptive", prefer="latency", sources=())
EXACT = {"target.model": "auto:quantised", "target.engine": "torch", "target.exact": "yes", "target.dtype": "float32"}
BASES = ("plain", "local draft")
Run = tuple[list[int], Usage]
Arm = tuple[Engine, Speculation]


def engine_of(settings: Mapping[str, Any]) -> tuple[Engine, LoadedModels]:
    """An engine with an exact target of its own."""
    changed = overridden(schema(all_parts())(), {**EXACT, **settings})
    models = load_models(changed)
    chosen = engine_settings(changed, choices_of(all_parts()), {**MAKERS, **models.makers})
    return Engine(models.target, models.local, chosen, curve=measure(models.target), on_idle=models.idle), models


async def measured(arms: Mapping[str, Arm], chats: Sequence[Sequence[int]], tokens: int) -> dict[str, list[Run]]:
    """One completion of each chat by each arm, beginning with another arm each time."""
    runs: dict[str, list[Run]] = {arm: [] for arm in arms}
    for engine in {engine for engine, _ in arms.values()}:
        engine.start()
    for number, chat in enumerate(chats):
        for arm in rotated(list(arms), number):
            engine, asked = arms[arm]
            request = GenerationRequest(chat, tokens, GREEDY, speculation=asked)
            text, done = await engine.submit(request).whole()
            runs[arm].append((text, done.usage))

    for engine in {engine for engine, _ in arms.values()}:
        await asyncio.to_thread(engine.stop)
    return runs


def main() -> int:
    """Prints a row for each arm; returns 1 if texts differ."""
    parser = argparse.ArgumentParser(prog="python -m tools.parts.draft_heads")
    parser.add_argument("heads", nargs="*", help="files of heads for the target")
    parser.add_argument("--layers", nargs="+", type=int, default=[], help="those of the self-draft")
    parser.add_argument("--draft", default="auto:dropped", help="the local draft model beside which they are measured")
    parser.add_argument("--limit", type=int, default=6, help="prompts to use")
    parser.add_argument("--max-tokens", type=int, default=48, help="tokens of each completion")
    options = parser.parse_args()

    alone, models = engine_of({"local_draft.model": "", "sources.heads": options.heads})
    beside, _ = engine_of({"local_draft.model": options.draft})
    arms = {"plain": (alone, PLAIN), "local draft": (beside, LOCAL)}
    for kind in models.makers:
        arms[kind] = (alone, replace(LOCAL, sources=(kind,)))
    if options.layers:
        self_draft, _ = engine_of({"local_draft.model": "self", "local_draft.layers": options.layers})
        arms["self-draft"] = (self_draft, LOCAL)

    prompts = read_prompts(PROMPTS, options.limit, seed=0)
    chats = [models.text.render_chat([{"role": "user", "content": prompt}]) for prompt in prompts]
    runs = asyncio.run(measured(arms, chats, options.max_tokens))

    heads = ["arm", "right", "tokens a pass", *(f"time ÷ {base}" for base in BASES)]
    print("\n".join(table(heads, [row(runs, arm) for arm in arms if proposed(runs[arm]) or arm == "plain"])))
    return int(any(len({tuple(text) for text, _ in turn}) > 1 for turn in zip(*runs.values(), strict=True)))


def proposed(runs: Sequence[Run]) -> bool:
    """Whether an arm had candidates: without a file of this kind of heads it has none."""
    return any(usage.drafted for _, usage in runs)


def row(runs: Mapping[str, Sequence[Run]], arm: str) -> list[str]:
    """Sums over prompts, and medians of the ratios of times."""
    usages = [usage for _, usage in runs[arm]]
    accepted = sum(sum(usage.accepted.values()) for usage in usages)
    verified = sum(sum(usage.drafted.values()) for usage in usages)
    tokens = sum(usage.completion_tokens for usage in usages)
    cells = [arm, f"{accepted} of {verified}", f"{tokens / sum(usage.rounds for usage in usages):.2f}"]
    for base in BASES:
        pairs = zip(usages, (usage for _, usage in runs[base]), strict=True)
        ratio = statistics.median(usage.times.decode_s / other.times.decode_s for usage, other in pairs)
        cells.append(f"{ratio:.2f}")
    return cells


if __name__ == "__main__":
    sys.exit(main())
