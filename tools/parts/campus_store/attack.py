"""`python -m tools.parts.campus_store.attack --prompts FILE`: who can see which prompts were asked before (minutes).

A victim has asked half of 50 prompts. The attacker asks all of them once, as one who has the victim's key, one of the
same cache group, and one of another group. A prompt is taken for asked if its completion took less time than the
median of the attacker's 50, or if `usage` names accepted tokens of source `store` in at least half of the completion.
Chance is 50 %.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cloud_gateway.auth import Key, KeyRing
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

TOKENS = 32
"""Tokens of a completion."""


@dataclass(frozen=True)
class Seen:
    """One completion, to the attacker."""

    decode_s: float
    share: float
    """Tokens of source `store` in the completion."""


async def attacked(texts: Sequence[str], asked: Sequence[str], folder: Path) -> dict[str, list[Seen]]:
    """Each prompt, to each attacker."""
    models = load_models(overridden(GatewaySettings(), {"local_draft.model": ""}))
    prompts = {text: models.text.render_chat([{"role": "user", "content": text}]) for text in texts}
    curve = measure(models.target)
    ring = KeyRing(folder)
    victim, mate, stranger = (ring.create(name, cache_group=name[0])[0] for name in ("c1", "c2", "d1"))
    seen: dict[str, list[Seen]] = {}
    for name, attacker in (("the same key", victim), ("the same cache group", mate), ("another group", stranger)):
        store = Store(StoreLimits(64 * 2**20, 0, prompts=False), ring, None)
        chosen = engine_settings(GatewaySettings(), makers={**MAKERS, "store": partial(StoreSource, store=store)})
        engine = Engine(models.target, None, chosen, recorders=[Storing(store)], curve=curve)
        engine.start()

        async def complete(text: str, key: Key, engine: Engine = engine, store: Store = store) -> Seen:
            speculation = Speculation(sources=("lookup", "store"))
            sampling = Sampling(temperature=0.0)
            scope = key.cache_group.encode()
            request = GenerationRequest(
                prompts[text], TOKENS, sampling, speculation=speculation, cache_scope=scope, key=key.id
            )
            tokens, done = await engine.submit(request).whole()
            store.settle()
            accepted = done.usage.sources["store"]["accepted"]
            return Seen(done.usage.times.decode_s / len(tokens), accepted / len(tokens))

        for text in asked:
            await complete(text, victim)
        seen[name] = [await complete(text, attacker) for text in texts]
        await asyncio.to_thread(engine.stop)
        store.close()
    return seen


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.parts.campus_store.attack")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines: `prompt` or `turns`; at least 50")
    texts = read_prompts(parser.parse_args().prompts, 50, 2)
    asked = random.Random(3).sample(texts, len(texts) // 2)
    with tempfile.TemporaryDirectory() as folder:
        seen = asyncio.run(attacked(texts, asked, Path(folder)))

    rows: list[list[str]] = []
    for name, figures in seen.items():
        median = statistics.median(one.decode_s for one in figures)
        truth = [text in asked for text in texts]
        by_time = [(one.decode_s < median) == was for one, was in zip(figures, truth, strict=True)]
        by_usage = [(one.share >= 0.5) == was for one, was in zip(figures, truth, strict=True)]
        rows.append([name, *(f"{sum(right) / len(texts):.0%}" for right in (by_time, by_usage))])
    print("\n".join(table(("attacker has", "right by time", "right by usage"), rows)))


if __name__ == "__main__":
    main()
