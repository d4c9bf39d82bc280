"""`python -m tools.bench frames`: what one signed frame costs, through the session code that the link runs.

A worker's `Tree` of 32 nodes: numbering, msgpack, padding and signing on one side; verifying, decoding and all checks
of its shape on the other. Likewise the gateway's `Commit` of 3 tokens. The goal is 120 µs a frame.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgespec.core.protocol import messages as m
from edgespec.core.protocol.gateway_session import GatewaySession
from edgespec.core.protocol.handshake import GatewayIdentity, Pin, WorkerIdentity
from edgespec.core.protocol.session import WorkerSession
from edgespec.core.protocol.signing import SigningKey
from tools import verbs

VOCAB = 49_152
GOAL_US = 120


def linked_sessions() -> tuple[WorkerSession, GatewaySession]:
    """Both ends of an authenticated link, without a socket."""
    spki, digest = b"s" * 32, b"t" * 32
    worker_key, gateway_key = SigningKey(b"w" * 32), SigningKey(b"g" * 32)
    me = WorkerIdentity(worker_key, "bench", digest, b"m" * 32, VOCAB, 4)
    worker = WorkerSession(me, Pin(gateway_key.public, spki), spki, b"1" * 32, 0.0)
    gateway = GatewaySession(GatewayIdentity(gateway_key, "bench", spki, digest), lambda key: "paired", b"2" * 32, 0.0)
    for _ in range(2):
        for data in worker.outgoing():
            gateway.receive(data, 0.0)
        for data in gateway.outgoing():
            worker.receive(data, 0.0)
    return worker, gateway


def some_tree(nodes: int, rng: random.Random) -> m.Tree:
    """A tree as a worker sends it: real-sized ids, tokens, costs and entropies."""
    first = rng.randrange(1, 5000)
    parents = [first + rng.randrange(i) if i else m.ROOT for i in range(nodes)]
    tokens = rng.sample(range(VOCAB), nodes)
    costs, entropies = ([rng.randrange(8000) for _ in range(nodes)] for _ in range(2))
    return m.Tree(rng.randrange(10**6), 1, 700, rng.randbytes(32), first, parents, tokens, costs, entropies)


def timed(count: int, step: Callable[[int], Any]) -> list[float]:
    """Microseconds of each of `count` calls, after a tenth as many for warmth."""
    for i in range(count // 10):
        step(i)
    times: list[float] = []
    for i in range(count):
        began = time.perf_counter_ns()
        step(i)
        times.append((time.perf_counter_ns() - began) / 1000)
    return times


def measure(frames: int, nodes: int) -> dict[str, Any]:
    """Medians over `frames` frames of each kind, in µs, and sizes in bytes."""
    rng = random.Random(1)
    total = frames + frames // 10
    worker, gateway = linked_sessions()
    trees = [some_tree(nodes, rng) for _ in range(total)]
    commits = [m.Commit(1, 1, i, rng.sample(range(VOCAB), 3), rng.randbytes(32)) for i in range(total)]
    wire: list[bytes] = []
    figures: dict[str, Any] = {"frames": frames, "nodes": nodes}

    def take_tree(i: int) -> None:
        (tree,) = gateway.receive(wire[taken.pop()], 0.0)
        assert isinstance(tree, m.Tree)
        m.check_tree_shape(tree, VOCAB)

    def take_commit(i: int) -> None:
        worker.receive(wire[taken.pop()], 0.0)

    for name, give, take in (
        ("tree", lambda i: wire.append(worker.send(trees[len(wire)])), take_tree),
        ("commit", lambda i: wire.append(gateway.send(commits[len(wire)])), take_commit),
    ):
        wire.clear()
        sent = timed(frames, give)
        taken = list(range(total))[::-1]
        received = timed(frames, take)
        figures |= {
            f"{name}_bytes": statistics.median(map(len, wire)),
            f"{name}_sign_encode_us": round(statistics.median(sent), 1),
            f"{name}_verify_decode_us": round(statistics.median(received), 1),
            f"{name}_both_us": round(statistics.median(sent) + statistics.median(received), 1),
        }
    return figures | {"goal_us": GOAL_US, "goal_met": figures["tree_both_us"] <= GOAL_US}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench frames`."""
    parser.add_argument("--frames", type=int, default=5000)
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--json", type=Path, nargs="?", metavar="OUT", help="also write the figures here")


def run(options: argparse.Namespace) -> int:
    """Measures and prints; returns 0."""
    verbs.print_json(measure(options.frames, options.nodes), options.json)
    return 0
