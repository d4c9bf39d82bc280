"""`python -m tools.bench path`: how long a commit and a frame take through the gateway while models compute.

A torch target of a public shape with random weights decodes in the engine's thread, on one core; a process on another
core drafts and reads memory as a draft model does. Frames and commits are the link's, signed, over a socket pair: TLS
and WebSocket are left out. Printed in microseconds, p50 and p99:

    commit      from the end of the target's pass until the signed commit is in the socket
    frame       from its sending by the worker until the event loop has handed it to the engine
    merge       from there until it is merged: until the pass under way ends, as one thread owns trees and models

`commits_before_the_next_pass` is a share, which says more than the times on a machine with other work.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.core.requests.steps import FrameArrived
from cloud_gateway.engine.collector import spare_rounds
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.target_model.torch import TorchTarget
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings
from edgespec.core.protocol.messages import Commit, ToWorker, Tree, check_tree_shape
from tools import verbs
from tools.bench.path_worker import pack, unpack
from tools.bench.rounds import BenchLink, InstantTarget
from tools.bench.target import SHAPES, make_target

PROMPT = 32


class PathLink(BenchLink):
    """The engine's link layer over a socket, with the times of what passes."""

    def __init__(self, stream: socket.socket) -> None:
        super().__init__(InstantTarget(), 0.8, 0)
        self.stream, self.buffer = stream, bytearray()
        self.ended = 0.0
        """When the target's last pass ended."""
        self.passes = self.in_time = 0
        """Passes so far, and those that began with all commits before them written."""
        self.times: dict[str, list[float]] = {"commit": [], "frame": [], "merge": []}

    def send(self, worker: str, body: ToWorker) -> None:
        """Signs, encodes and writes."""
        self.stream.sendall(pack(self.gateway.send(body)))
        if isinstance(body, Commit):
            self.times["commit"].append(time.perf_counter() - self.ended)

    def read(self, engine: Engine) -> None:
        """Takes in what the worker sent, on the event loop."""
        self.buffer += self.stream.recv(1 << 16)
        for data, sent in unpack(self.buffer):
            for tree in self.gateway.receive(data, 0.0):
                assert isinstance(tree, Tree)
                check_tree_shape(tree, self.target.vocab_size)
                engine.post(FrameArrived("w", tree))
                self.times["frame"].append(time.perf_counter() - sent / 1e9)


def watch(engine: Engine, link: PathLink) -> None:
    """Notes the ends of passes and of merges."""
    target, offloading = engine.target, engine.offloading
    verify, arrived = target.verify, offloading.frame_arrived

    def timed(batch: Sequence[Any]) -> Any:
        link.in_time += len(link.times["commit"]) >= link.passes
        found = verify(batch)
        link.passes, link.ended = link.passes + 1, time.perf_counter()
        return found

    def merged(event: FrameArrived, at: float) -> None:
        arrived(event, at)
        link.times["merge"].append(time.perf_counter() - at)

    target.verify = timed  # type: ignore[method-assign]
    type(offloading).frame_arrived = lambda _, event, at: merged(event, at)  # type: ignore[method-assign, assignment]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Decodes for so many seconds; figures in microseconds."""
    gateway, worker = socket.socketpair()
    cores = sorted(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "tools.bench.path_worker", str(worker.fileno()), str(options.step_ms / 1000)]
    process = subprocess.Popen(command, pass_fds=[worker.fileno()])
    worker.close()
    os.sched_setaffinity(process.pid, {cores[-1]})
    options.context, options.identity, options.dtype, options.device = PROMPT, 8192, "bfloat16", "cpu"
    target = make_target(options, 2)
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[0]})
    with gateway:
        figures = asyncio.run(_decode(target, gateway, options.seconds))
    process.wait(10)
    return figures


async def _decode(target: TorchTarget, gateway: socket.socket, seconds: float) -> dict[str, Any]:
    link = PathLink(gateway)
    engine = Engine(target, None, engine_settings(GatewaySettings()), link)
    watch(engine, link)
    loop = asyncio.get_running_loop()
    loop.add_reader(gateway, link.read, engine)
    spare_rounds()
    engine.start()
    try:
        stream = engine.submit(GenerationRequest(list(range(PROMPT)), 8000, ignore_eos=True))
        until = loop.time() + seconds
        async for _ in stream:
            if loop.time() > until:
                stream.cancel()
    finally:
        await asyncio.to_thread(engine.stop)
        loop.remove_reader(gateway)
    return {
        "rounds": engine.stats.rounds,
        "pass_ms": round(engine.stats.target_s / engine.stats.rounds * 1e3, 1),
        "commits_before_the_next_pass": round(link.in_time / max(link.passes, 1), 3),
    } | {
        f"{name}_us": {f"p{q}": round(float(np.percentile(times, q)) * 1e6) for q in (50, 99)}
        for name, times in link.times.items()
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench path`."""
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--shape", choices=SHAPES, default="135m")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=6.0, help="what a draft step of the worker takes (default: 6)")
    parser.add_argument("--json", type=Path, metavar="OUT")


def run(options: argparse.Namespace) -> int:
    """Measures and prints; returns 0."""
    verbs.print_json(measure(options), options.json)
    return 0
