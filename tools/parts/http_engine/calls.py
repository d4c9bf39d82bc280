"""What a call takes, by its parts: the server's own time for it, and what the engine adds."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.models.target_model import Work
from cloud_gateway.parts.http_engine.attach import token_ids
from cloud_gateway.parts.http_engine.dialects import Question
from cloud_gateway.parts.http_engine.server import Server
from cloud_gateway.parts.http_engine.target import HttpTarget, ServerLoop
from cloud_gateway.parts.http_engine.tokens import tokens_of
from edgespec_lab.markdown import table
from tools.parts.http_engine.system import CONTEXT, SLOTS, add_common, vllm

HEADS = ("prompts of a call", "the server, ms", "by the engine, ms", "engine adds, ms", "once a second, ms")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    add_common(parser, rig=False)
    parser.add_argument("--prompts", type=int, nargs="+", default=[1, 2, 3, 5, 9], help="of a call")
    parser.add_argument("--prefix", type=int, default=256, metavar="TOKENS", help="of the common beginning")
    parser.add_argument("--repeats", type=int, default=15)


def run(options: argparse.Namespace) -> int:
    """Prints a row for each number of prompts: medians of calls in turns, over paths that were not sent before."""
    rows: list[list[object]] = []
    with vllm(options) as running:
        loop = ServerLoop()
        server = Server(running.url)
        loop.run(server.open())
        _, tokens = tokens_of(running.model)
        target = HttpTarget(server, loop, tokens, slots=SLOTS, context=CONTEXT, kv_tokens=SLOTS * CONTEXT)
        prefix = token_ids(options.prefix)
        slot, _ = target.open(prefix)  # no request: each pass is a call
        for count in options.prompts:
            ways: Sequence[Callable[[], object]] = (
                partial(direct, loop, server, prefix, count),
                partial(by_engine, target, slot, prefix[-1], count),
                partial(ask_same, loop, server),
            )
            direct_ms, engine_ms, same_ms = medians(ways, options.repeats)
            rows.append([count, *(f"{ms:.1f}" for ms in (direct_ms, engine_ms, engine_ms - direct_ms, same_ms))])
            print(rows[-1], flush=True)
        loop.run(server.close())
        loop.stop()

    print("\n".join(table(HEADS, rows)))
    return 0


def direct(loop: ServerLoop, server: Server, prefix: Sequence[int], count: int) -> None:
    """A call over a chain that was not sent before."""
    path = token_ids(count - 1)
    loop.run(server.rows(Question(server.model.id), [[*prefix, *path[:depth]] for depth in range(count)]))


def by_engine(target: HttpTarget, slot: int, last: int, count: int) -> None:
    """The same as a pass of the engine."""
    chain = FlatTree([last, *token_ids(count - 1)], list(range(-1, count - 1)), list(range(count)))
    target.verify([Work(slot, chain)])


def ask_same(loop: ServerLoop, server: Server) -> None:
    """Whether the server is the one of the start."""
    loop.run(server.same())


def medians(ways: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Milliseconds of each, in turns."""
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats):
        for way, seconds in zip(ways, times, strict=True):
            began = time.perf_counter()
            way()
            seconds.append(1000 * (time.perf_counter() - began))
    return [statistics.median(seconds) for seconds in times]
