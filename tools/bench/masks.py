"""`python -m tools.bench masks`: one key's time between tokens beside three completions of another key's JSON schema.

A target without weights whose pass takes 15 ms, and llguidance over the vocabulary of the demo's model. The schema's
pattern has masks of up to 100 ms. `inline` computes them on the engine's thread, as it was; `beside` on a thread of
their own. Every schema is another one, since what was computed for one is cached.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from rich.table import Table

from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest, Speculation
from cloud_gateway.core.verify.interface import Constraint
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.grammar import Grammars
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings
from edgespec.core.protocol.messages import Sampling
from edgespec.shared import models
from tools import options as checked
from tools import verbs
from tools.doubles.engines import TableTarget
from tools.doubles.model import HashModel, Logits

PATTERN = r"^((.*c.{{12}}| )*|.*h.{{8}}|.*d.{{{}}}|.*b.*c.{{150}})$"
OTHERS = 3
PASS_S = 0.015
PLAIN = Speculation(policy="plain")


class Table64(HashModel):
    """One of 64 rows of logits by the last tokens, so that a row over a real vocabulary costs nothing."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self._rows = np.random.default_rng(1).standard_normal((64, vocab_size), np.float32)

    def row(self, tokens: Sequence[int]) -> Logits:
        return self._rows[sum(tokens[-3:]) % 64]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench masks`."""
    parser.add_argument("--tokens", type=checked.number(int, 8, 2000), default=60, help="of the key that is timed")
    parser.add_argument("--repeats", type=checked.number(int, 1, 100), default=5, help="of all arms in turn")


def run(options: argparse.Namespace) -> int:
    """Prints a row for each arm; 1 where `beside` is above 1.25 times `ordinary`. Raises ModelError."""
    from cloud_gateway.models.target_model.load import load_vocabulary

    loaded = load_vocabulary(models.quantised())
    vocab, eos = len(loaded.tokenizer), frozenset[int]()
    grammars = Grammars(loaded.tokenizer, vocab, loaded.eos)
    numbers = itertools.count(20)

    def schema(scope: bytes) -> Callable[[str], Constraint]:
        made = grammars.compile({"type": "string", "pattern": PATTERN.format(next(numbers))}, scope)
        return lambda how: made.beside() if how == "beside" else made.constraint()

    gaps: dict[str, list[float]] = {"alone": [], "ordinary": [], "inline": [], "beside": []}
    for _ in range(options.repeats):
        for arm, found in gaps.items():
            others = [schema(b"other")(arm) if arm in ("inline", "beside") else None for _ in range(OTHERS)]
            target = TableTarget(OTHERS + 1, 4096, PASS_S, model=Table64(vocab), eos=eos)
            found += asyncio.run(_timed(target, [] if arm == "alone" else others, options.tokens))
    grammars.close()
    table = Table("arm", "mean ms", "p99 ms", "to ordinary")
    base = statistics.fmean(gaps["ordinary"])
    for arm, found in gaps.items():
        mean = statistics.fmean(found)
        p99 = float(np.percentile(found, 99))
        table.add_row(arm, f"{1000 * mean:.1f}", f"{1000 * p99:.1f}", f"{mean / base:.2f}")
    verbs.console().print(table)
    return int(statistics.fmean(gaps["beside"]) > 1.25 * base)


async def _timed(target: TableTarget, others: Sequence[Constraint | None], tokens: int) -> list[float]:
    """Seconds between the tokens of one completion beside these."""
    engine = Engine(target, None, engine_settings(GatewaySettings()))
    engine.start()
    try:
        running = [
            asyncio.ensure_future(engine.submit(_request(n, 10 * tokens, constraint)).whole())
            for n, constraint in enumerate(others)
        ]
        await asyncio.sleep(0.2)
        times: list[float] = []
        async for event in engine.submit(_request(99, tokens, None)):
            if not isinstance(event, DoneEvent):
                times.append(time.perf_counter())
        for task in running:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    finally:
        engine.stop()
    return [late - early for early, late in itertools.pairwise(times)]


def _request(number: int, tokens: int, constraint: Constraint | None) -> GenerationRequest:
    sampling = Sampling(temperature=1.0, seed=number)
    return GenerationRequest(
        [1, 2, number], tokens, sampling, ignore_eos=True, speculation=PLAIN, constraint=constraint
    )
