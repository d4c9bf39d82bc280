"""`python -m tools.parts.campus_store.repeated --prompts FILE`: what the store saves, in the real engine (minutes).

Each prompt is completed greedily without the store, with it while the prompt is new (those before it are stored), and
with it again; then with "Please answer: " before the prompt, without and with the store. `lookup`, the shipped default,
is on in all arms. Times are of decoding. The target is exact, so texts have to be equal with and without the store:
exit status 1 if one is not.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cloud_gateway.auth import KeyRing
from cloud_gateway.core.requests.request import GenerationRequest, Speculation
from cloud_gateway.core.sources.asking import MAKERS
from cloud_gateway.engine.loop import Engine
from cloud_gateway.parts.campus_store.source import StoreSource, Storing
from cloud_gateway.parts.campus_store.store import Store, StoreLimits
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings, load_models, measure
from edgespec.core.protocol.messages import Sampling
from edgespec.shared.settings import overridden
from edgespec_lab.demo import read_prompts
from edgespec_lab.markdown import table

PAIRS = (("new", "without"), ("again", "without"), ("reworded", "reworded without"))


@dataclass(frozen=True)
class Run:
    """One completion."""

    tokens: Sequence[int]
    rounds: int
    decode_s: float


async def measured(options: argparse.Namespace, folder: Path) -> dict[str, list[Run]]:
    """The runs of each arm, in the order of the prompts."""
    changes = {"local_draft.model": "", "target.exact": "yes", "target.model": options.target}
    settings = overridden(GatewaySettings(), changes)
    models = load_models(settings)
    ring = KeyRing(folder)
    key, _ = ring.create("measured")
    store = Store(StoreLimits(64 * 2**20, 0, prompts=False), ring, None)
    chosen = engine_settings(settings, makers={**MAKERS, "store": partial(StoreSource, store=store)})
    engine = Engine(models.target, None, chosen, recorders=[Storing(store)], curve=measure(models.target))
    engine.start()
    runs: dict[str, list[Run]] = {}

    async def complete(arm: str, text: str) -> None:
        prompt = models.text.render_chat([{"role": "user", "content": text}])
        asked = GenerationRequest(prompt, options.tokens, Sampling(temperature=0.0), key=key.id)
        if "without" in arm:
            request = replace(asked, speculation=Speculation(sources=("lookup",)))
        else:
            both = Speculation(sources=("lookup", "store"))
            request = replace(asked, speculation=both, cache_scope=key.id.encode())
        tokens, done = await engine.submit(request).whole()
        store.settle()
        runs.setdefault(arm, []).append(Run(tokens, done.usage.rounds, done.usage.times.decode_s))

    await complete("warm-up without", "How does a lighthouse work?")
    for number, text in enumerate(read_prompts(options.prompts, options.limit, 1)):
        turn = 1 - 2 * (number % 2)
        for arm in ("new", "without")[::turn]:
            await complete(arm, text)
        await complete("again", text)
        for arm in ("reworded", "reworded without")[::turn]:
            await complete(arm, f"Please answer: {text}")

    await asyncio.to_thread(engine.stop)
    store.close()
    return runs


def main() -> int:
    """Prints the table; returns 1 if texts differ."""
    parser = argparse.ArgumentParser(prog="python -m tools.parts.campus_store.repeated")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines: `prompt` or `turns`")
    parser.add_argument("--target", default="auto:quantised", help="a GGUF file")
    parser.add_argument("--limit", type=int, default=40, help="prompts")
    parser.add_argument("--tokens", type=int, default=96, help="of a completion")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = asyncio.run(measured(options, Path(folder)))

    rows: list[list[str]] = []
    for arm, base in PAIRS:
        ratios = [with_.decode_s / without.decode_s for with_, without in zip(runs[arm], runs[base], strict=True)]
        total = sum(run.decode_s for run in runs[arm]) / sum(run.decode_s for run in runs[base])
        passes = [
            sum(len(run.tokens) for run in runs[name]) / sum(run.rounds for run in runs[name]) for name in (base, arm)
        ]
        rows.append(
            [
                arm,
                *(f"{tokens:.2f}" for tokens in passes),
                f"{total:.3f}",
                f"{statistics.median(ratios):.3f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            ]
        )
    heads = ("prompt", "tokens a pass without", "with", "time with ÷ without", "median", "single prompts")
    print("\n".join(table(heads, rows)))
    differing = sum(runs[arm][at].tokens != run.tokens for arm, base in PAIRS for at, run in enumerate(runs[base]))
    print(f"texts that differ: {differing}")
    return int(bool(differing))


if __name__ == "__main__":
    raise SystemExit(main())
