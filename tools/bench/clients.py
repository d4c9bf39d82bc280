"""Tokens per second and waits of 1, 2, 4, 8 clients at once, on either engine, without the network.

Each client asks once, with a prompt of its own, and reads its tokens as they come. The levels run after each other, and
so do the policies; a level before the first one warms up and is not counted. No worker is linked.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cloud_gateway.core.requests.request import GenerationRequest, TokensEvent
from cloud_gateway.engine.loop import Engine
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings, load_models
from edgespec.shared import models
from edgespec.shared.settings import overridden, override
from tools import options, verbs

POLICIES = ("plain", "colocated", "adaptive")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench clients`."""
    parser.add_argument("--engine", choices=("torch", "llamacpp"), default="llamacpp")
    parser.add_argument("--model", type=Path, help="target: GGUF file or folder (default: the demo's)")
    parser.add_argument("--policy", choices=POLICIES, nargs="+", default=["plain"], help="all but plain draft here")
    parser.add_argument("--clients", type=_counts, default=[1, 2, 4, 8], metavar="N[,N...]", help="clients at once")
    parser.add_argument("--max-tokens", type=options.number(int, 2, 4096), default=48, help="tokens of each completion")
    parser.add_argument("--prompt-tokens", type=options.number(int, 1, 2048), default=32)
    parser.add_argument("--threads", type=options.number(int, 0, 512), default=1, help="of each model; 0: the fastest")
    parser.add_argument("--json", type=options.output, metavar="OUT", help="write all figures to this file")


def run(args: argparse.Namespace) -> int:
    """Prints a table; writes figures where asked."""
    rows = measure(args)
    verbs.console().print(verbs.table(rows))
    verbs.write_json(args.json, {"settings": {"engine": args.engine, "max_tokens": args.max_tokens}, "levels": rows})
    return 0


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each policy and number of clients. Raises ModelError."""
    draft = "" if args.policy == ["plain"] else str(models.requantised())
    values = {
        "target.model": str(args.model or models.quantised()),
        "target.engine": args.engine,
        "target.threads": args.threads,
        "target.slots": max(args.clients),
        "target.context": 256 * -(-(args.prompt_tokens + args.max_tokens) // 256),
        "local_draft.model": draft,
        "local_draft.threads": args.threads,
    }
    settings = overridden(GatewaySettings(), values)
    loaded = load_models(settings)
    rows = []
    for policy in args.policy:
        engine = Engine(loaded.target, loaded.local, engine_settings(override(settings, "policy.name", policy)))
        rows += asyncio.run(_levels(engine, policy, loaded.target.vocab_size, args))
    return rows


async def _levels(engine: Engine, policy: str, vocabulary: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    engine.start()
    try:
        rows = []
        for clients in (args.clients[0], *args.clients):
            prompts = rng.integers(vocabulary // 2, size=(clients, args.prompt_tokens)).tolist()
            began = time.perf_counter()
            times = await asyncio.gather(*(_client(engine, prompt, args.max_tokens) for prompt in prompts))
            rows.append({"policy": policy, "clients": clients} | figures(times, time.perf_counter() - began))
        return rows[1:]
    finally:
        engine.stop()


async def _client(engine: Engine, prompt: Sequence[int], count: int) -> list[float]:
    """Seconds from the request to each of its tokens; tokens of one round come at the same time."""
    began, times = time.perf_counter(), list[float]()
    async for event in engine.submit(GenerationRequest(prompt, count, ignore_eos=True)):
        if isinstance(event, TokensEvent):
            times += [time.perf_counter() - began] * len(event.tokens)
    return times


def figures(times: Sequence[Sequence[float]], seconds: float) -> dict[str, float]:
    """Of one level: tokens per second of all clients; milliseconds to the first token and between tokens."""
    return {"tokens_per_s": round(sum(map(len, times)) / seconds, 2), **waits(times)}


def waits(times: Sequence[Sequence[float]]) -> dict[str, float]:
    """Percentiles of milliseconds to the first of each series of times, and between its neighbours."""
    first = [1000 * one[0] for one in times]
    between = [1000 * gap for one in times for gap in np.diff(one)]
    found = dict[str, float]()
    for name, values in (("first_ms", first), ("between_ms", between)):
        found |= {f"{name}_p{q}": float(np.percentile(values or [0.0], q)) for q in (50, 95)}
    return {name: round(value, 2) for name, value in found.items()}


def _counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",")]
    if not all(1 <= count <= 128 for count in counts):
        raise argparse.ArgumentTypeError("numbers from 1 to 128, separated by commas")
    return counts
