"""QueueSpec on the demo's model: answers that a draft writes while a request waits, by their number and by the load.

    number   one slot, held by another request until all answers to the measured prompt are written. Plain decoding,
             n-grams of prompt and completion (`lookup`), and 0, 1, 2, 4 and 8 queued answers, in turns on each prompt
    load     so many requests at once for one slot, plainly and with queued answers, which cost those that run time

The local draft writes, and drafts nothing else, so that only what waited in the trie is verified. With `--worker` a
worker of this process writes too, in arms of its own. It has gone when the measured request of `number` runs. In `load`
it drafts on, and n = 0 shows what that alone gains.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from msgspec.structs import replace

from cloud_gateway.core.requests.request import GenerationRequest, Speculation, Usage
from cloud_gateway.core.sources.settings import MAX_ANSWERS
from cloud_gateway.engine.local_draft import LocalDrafting
from cloud_gateway.engine.loop import Engine
from cloud_gateway.engine.queue_drafts import QueueDrafts
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import Models, engine_settings, load_models
from edgespec.core.errors import ModelError
from edgespec.core.protocol.messages import Sampling
from edgespec.lab.pictures import drawn
from edgespec.shared.settings import overridden
from tools import options, verbs
from tools.bench.queue_writer import Writer
from tools.bench.source_prompts import TEXTS
from tools.bench.usages import ratios
from tools.bench.usages import row as counted

PLAIN, LOOKUP = Speculation(policy="plain"), Speculation(policy="adaptive", sources=("lookup",))
WRITING_S, LOOK_S = 600.0, 0.05
"""Longest wait for the answers to one prompt, and between two looks at it."""
ANSWERS = Speculation(policy="adaptive", sources=("answers",))
LOCAL, WORKER = "local draft", "worker"
NOBODY = LOCAL, 0
Key = tuple[str, int]
"""Who writes, and how many answers."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench queue`."""
    parser.add_argument("--limit", type=options.number(int, 1, 100), default=2, help="prompts")
    parser.add_argument("--text", choices=sorted(TEXTS), default="chat", help="kind of prompts")
    parser.add_argument("--answers", type=options.number(int, 0, MAX_ANSWERS), nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--load", type=options.number(int, 1, 32), nargs="*", default=[], help="requests at once")
    parser.add_argument("--load-answers", type=options.number(int, 1, MAX_ANSWERS), default=1)
    parser.add_argument("--draft", default="auto:requantised", help="what writes: GGUF file, or auto:NAME")
    parser.add_argument("--worker", action="store_true", help="let a worker write too, with the same draft")
    parser.add_argument("--target", default="auto:quantised", help="as target.model")
    parser.add_argument("--engine", choices=("torch", "llamacpp"), default="torch")
    parser.add_argument("--temperature", type=options.number(float, 0, 2), default=0.0)
    parser.add_argument("--max-tokens", type=options.number(int, 2, 4096), default=64, help="tokens of each completion")
    parser.add_argument("--threads", type=options.number(int, 0, 512), default=1, help="of each model; 0: the fastest")
    parser.add_argument("--json", type=options.output, metavar="OUT", help="write all figures, and OUT.png, OUT.svg")


def run(args: argparse.Namespace) -> int:
    """Prints tables; writes figures and a plot where asked. 1 where an arm's text is not that of the first arm."""
    report = asyncio.run(_measure(args))
    for name in ("number", "load"):
        if report[name]:
            verbs.console().print(verbs.table(report[name]))
    verbs.console().print("the text was the same in every arm" if report["same_text"] else "the arms' texts differ")
    verbs.write_json(args.json, report)
    if args.json is not None:
        plot(report, args.json)
    return 0 if report["same_text"] else 1


async def _measure(args: argparse.Namespace) -> dict[str, Any]:
    values = {"target.engine": args.engine, "target.threads": args.threads, "target.slots": 1, "target.context": 2048}
    values |= {"target.model": args.target, "target.exact": "yes"}
    values |= {"local_draft.model": args.draft, "local_draft.threads": args.threads}
    values |= {"sources.queued_answers": 1, "sources.queued_tokens": args.max_tokens, "sources.kept_tokens": 0}
    settings = overridden(GatewaySettings(), values)
    loaded = load_models(settings)
    bench = Bench(loaded, settings, args)
    try:
        number, same = await bench.by_number()
        return {"number": number, "load": await bench.by_load(), "same_text": same, "max_tokens": args.max_tokens}
    finally:
        bench.stop()


class Bench:
    """Engines over the same models, one for each number of queued answers and for who writes them."""

    def __init__(self, loaded: Models, settings: GatewaySettings, args: argparse.Namespace) -> None:
        self._text, self._args = loaded.text, args
        self._writer = Writer(args.draft, 2 * settings.target.context, args.threads) if args.worker else None
        self._engines: dict[Key, Engine] = {}
        for count in {0, *args.answers, args.load_answers}:
            engine = Engine(loaded.target, None, engine_settings(settings))
            writer = LocalDrafting(loaded.local, engine.local.verify_s, engine.stats, engine.clock)
            engine.queue_drafts = QueueDrafts(writer, replace(settings.sources, queued_answers=count), ())
            engine.start()
            self._engines[LOCAL, count] = engine
        for count in {0, *args.answers, args.load_answers} if args.worker else ():
            sources = replace(settings.sources, queued_answers=count)
            engine = Engine(loaded.target, None, engine_settings(replace(settings, sources=sources)), self._writer)
            engine.start()
            self._engines[WORKER, count] = engine

    def stop(self) -> None:
        """Ends all engines."""
        for engine in self._engines.values():
            engine.stop()
        if self._writer is not None:
            self._writer.stop()

    async def by_number(self) -> tuple[list[dict[str, Any]], bool]:
        """A row for each arm; whether all gave the same texts."""
        arms: dict[str, tuple[Key, Speculation]] = {"plain": (NOBODY, PLAIN), "prompt n-grams": (NOBODY, LOOKUP)}
        for who in (LOCAL, WORKER) if self._writer is not None else (LOCAL,):
            named = ", by a worker" if who == WORKER else ""
            arms |= {f"n = {count}{named}": ((who, count), ANSWERS) for count in self._args.answers if count}
        found: dict[str, list[Usage]] = {name: [] for name in arms}
        await self._one(*arms["plain"], self._prompt("Count to ten."))
        same = True
        for turn, text in enumerate(TEXTS[self._args.text][: self._args.limit]):
            names, texts = list(arms), []
            for name in [*names[turn % len(names) :], *names[: turn % len(names)]]:
                tokens, usage = await self._one(*arms[name], self._prompt(text))
                texts.append(tokens)
                found[name].append(usage)
            same = same and all(one == texts[0] for one in texts)
        return [row(name, usages, found["plain"]) for name, usages in found.items()], same

    async def by_load(self) -> list[dict[str, Any]]:
        """A row for each number of requests at once and each arm."""
        rows, prompts = list[dict[str, Any]](), [self._prompt(text) for kind in TEXTS.values() for text in kind]
        count = self._args.load_answers
        arms: dict[str, tuple[Key, Speculation]] = {"plain": (NOBODY, PLAIN), f"n = {count}": ((LOCAL, count), ANSWERS)}
        if self._writer is not None:
            arms |= {f"a worker, n = {many}": ((WORKER, many), ANSWERS) for many in (0, count)}
        for load in self._args.load:
            asked = [prompts[number % len(prompts)] for number in range(load)]
            for name, (key, speculation) in arms.items():
                began = time.perf_counter()
                with self._linked(key):
                    ended = await asyncio.gather(*(self._ask(key, speculation, prompt) for prompt in asked))
                seconds, tokens = time.perf_counter() - began, sum(len(one) for one, _ in ended)
                rounds = sum(usage.rounds for _, usage in ended)
                rows.append({"requests": load, "arm": name, "tokens / s": round(tokens / seconds, 2)})
                rows[-1] |= {"tokens / round": round(tokens / rounds, 2)}
        return rows

    def _prompt(self, text: str) -> list[int]:
        return self._text.render_chat([{"role": "user", "content": text}])

    async def _one(self, key: Key, speculation: Speculation, prompt: Sequence[int]) -> tuple[list[int], Usage]:
        """A completion whose answers were all written while it waited."""
        engine, count = self._engines[key], key[1]
        holder = engine.submit(GenerationRequest(prompt, 2048 - len(prompt), ignore_eos=True, speculation=PLAIN))
        async for _ in holder:
            break
        written = _answers(engine) + count
        try:
            with self._linked(key):
                wanted = asyncio.create_task(self._ask(key, speculation, prompt))
                for _ in range(int(WRITING_S / LOOK_S)):
                    if _answers(engine) >= written or wanted.done():
                        break
                    await asyncio.sleep(LOOK_S)
        finally:
            holder.cancel()
        return await wanted

    def _linked(self, key: Key) -> AbstractContextManager[None]:
        """The worker is this engine's meanwhile, where it is to write."""
        if self._writer is None or key[0] != WORKER:
            return nullcontext()
        return self._writer.linked_to(self._engines[key])

    async def _ask(self, key: Key, speculation: Speculation, prompt: Sequence[int]) -> tuple[list[int], Usage]:
        sampling = Sampling(temperature=self._args.temperature, seed=1 if self._args.temperature else None)
        asked = GenerationRequest(prompt, self._args.max_tokens, sampling, speculation=speculation)
        tokens, end = await self._engines[key].submit(asked).whole()
        if end.error is not None:
            raise ModelError(end.error)
        return tokens, end.usage


def row(name: str, usages: Sequence[Usage], plain: Sequence[Usage]) -> dict[str, Any]:
    """Of one arm: sums over the prompts, medians of times, and the speed-up against plain decoding of each prompt."""
    faster = ratios(plain, usages)
    return {
        "arm": name,
        **counted(usages),
        "speed-up": round(median(faster), 2),
        "least": round(faster[0], 2),
        "most": round(faster[-1], 2),
        "draft passes": sum(usage.local_draft_passes for usage in usages),
        "frames": sum(usage.frames["received"] for usage in usages),
    }


def plot(report: dict[str, Any], out: Path) -> list[Path]:
    """What answers gain by their number and by the load, beside OUT."""
    return drawn(out, (9, 4), partial(_draw, report))


def _draw(report: dict[str, Any], figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    rows = report["number"]
    values = [one["speed-up"] for one in rows]
    around = [[one["speed-up"] - one["least"] for one in rows], [one["most"] - one["speed-up"] for one in rows]]
    left.bar([one["arm"] for one in rows], [one["tokens / round"] for one in rows], color="0.8", label="tokens a pass")
    left.errorbar(
        range(len(rows)), values, yerr=around, fmt="o", capsize=3, label="speed-up of decoding, least to most"
    )
    left.set_ylabel("relative to plain decoding")
    left.legend()
    left.tick_params(axis="x", labelrotation=30)
    for arm in dict.fromkeys(one["arm"] for one in report["load"]):
        points = [(one["requests"], one["tokens / s"]) for one in report["load"] if one["arm"] == arm]
        right.plot(*zip(*points, strict=True), marker="o", label=arm)
    right.set_xlabel("requests at once, one slot")
    right.set_ylabel("tokens per second, all requests")
    if report["load"]:
        right.legend()


def _answers(engine: Engine) -> int:
    """Written so far, by workers and the local draft."""
    return engine.offloading.queued.answers + engine.queue_drafts.answers
