"""`python -m tools.bench serving`: a real worker that drafts for several requests at once, on one core.

The daemon, its draft model (`edgespec models make --format q4_0`) and both ends of the link's session are the shipped
ones. The gateway is emulated: what the target would say was computed before by greedy decoding, a pass of all requests
takes `--pass-ms` and verifies 16 candidates of each, and messages take half a round trip. Figures are of the time in
which all requests are drafted for.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.best_first import BestFirstRule, Starts
from edgespec.core.drafting.together import DraftCurve
from edgespec.core.protocol.messages import Close, Commit, Decline, Open, Sampling, StepTimes, Tree
from edgespec.lab.demo.scene import PROMPTS, read_prompts
from edgespec.llamacpp.drafter import Drafter
from edgespec.llamacpp.step_time import step_curve
from edgespec.llamacpp.tokenizer import GgufTokenizer
from edgespec.shared import models
from edgespec.worker.daemon import Daemon, Outlet
from tools import verbs
from tools.bench.sessions import linked_sessions

VERIFIED = 16
MAX_TOKENS = 9
"""Of a pass, in the mean."""
WARM_UP = 3
"""Passes before those that count, after all have read their prompts."""


def completions(count: int, length: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """Prompts, and the target's greedy completions of them."""
    path = models.quantised()
    tokenizer, target, found = GgufTokenizer(path), Drafter(path, sequences=1, threads=len(os.sched_getaffinity(0))), []
    for text in read_prompts(PROMPTS, count, seed):
        prompt = tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n".encode())
        target.open(text, prompt)
        completion = list[int]()
        while len(completion) < length:
            (proposal,) = target.step(text, [()], 1)
            completion.append(proposal.tokens[0])
            target.commit(text, completion[-1:])
        target.close(text, keep=False)
        found.append((prompt, completion))
    target.shutdown()
    return found


class Requests:
    """The gateway's side of a worker's requests."""

    def __init__(self, given: Sequence[tuple[list[int], list[int]]], rtt_s: float) -> None:
        self.trees = {number: CandidateTree(prompt) for number, (prompt, _) in enumerate(given, 1)}
        self.left = {number: list(completion) for number, (_, completion) in enumerate(given, 1)}
        self.worker, self.gateway = linked_sessions()
        self.delay_s = rtt_s / 2
        self.up: deque[tuple[float, bytes]] = deque()
        self.down: deque[tuple[float, bytes]] = deque()
        self.bytes = self.accepted = self.tokens = self.passes = 0
        self.daemon: Daemon

    def sent(self, messages: Sequence[Tree | StepTimes | Decline]) -> None:
        """A frame of the worker, on its drafting thread."""
        self.up.append((time.perf_counter() + self.delay_s, self.worker.send(*messages)))
        self.daemon.writable()

    def send(self, *messages: Open | Commit | Close) -> None:
        """A frame to the worker."""
        self.down.append((time.perf_counter() + self.delay_s, self.gateway.send(*messages)))

    def until(self, end: float) -> None:
        """Delivers what arrives before then."""
        while (now := time.perf_counter()) < end:
            for queue, session in ((self.up, self.gateway), (self.down, self.worker)):
                while queue and queue[0][0] <= now:
                    data = queue.popleft()[1]
                    self.bytes += len(data)
                    for event in session.receive(data, now):
                        if isinstance(event, Tree):
                            self.trees[event.request].merge("w", event, "w")
                        elif isinstance(event, Open | Commit | Close):
                            self.daemon.take(event)
            time.sleep(0.0005)

    def verify(self, pass_s: float) -> None:
        """One pass of the target for all requests."""
        rows = {number: set(map(id, tree.best(VERIFIED))) for number, tree in self.trees.items()}
        self.until(time.perf_counter() + pass_s)
        commits = list[Commit]()
        for number, tree in self.trees.items():
            left, node, count = self.left[number], tree.root, 1
            while (child := node.children.get(left[count - 1])) is not None and id(child) in rows[number]:
                node, count = child, count + 1
            tokens, self.left[number] = left[:count], left[count:]
            start, micros = len(tree.prefix), round(pass_s * 1e6)
            tree.advance(tokens)
            commits.append(Commit(number, 1, start, tokens, tree.prefix.digest, micros, micros, count))
            self.accepted, self.tokens, self.passes = self.accepted + count - 1, self.tokens + count, self.passes + 1
        self.send(*commits)


def measure(given: Sequence[tuple[list[int], list[int]]], passes: int, pass_s: float, rtt_s: float) -> dict[str, Any]:
    """Figures of a worker with these requests."""
    requests = Requests(given, rtt_s)
    drafter = Drafter(models.requantised(), sequences=16)
    curve = step_curve(drafter)
    requests.daemon = daemon = Daemon(
        drafter, Starts(BestFirstRule()), Outlet(requests.sent, lambda error: None), curve=DraftCurve(curve)
    )
    daemon.outlet.rtt_s = rtt_s
    threading.Thread(target=daemon.run, daemon=True).start()
    for number, (prompt, _) in enumerate(given, 1):
        requests.send(Open(number, 1, len(prompt), prompt, Sampling()))
    while not all(len(tree.tree) for tree in requests.trees.values()):
        requests.until(time.perf_counter() + 0.02)
    for _ in range(WARM_UP):
        requests.verify(pass_s)
    requests.bytes = requests.accepted = requests.tokens = requests.passes = 0
    steps, rows, nodes, began = daemon.stats.steps, drafter.rows, daemon.stats.nodes, time.perf_counter()
    for _ in range(passes):
        requests.verify(pass_s)
    seconds = time.perf_counter() - began
    done = daemon.stats.steps - steps, drafter.rows - rows, daemon.stats.nodes - nodes
    daemon.stop()
    return {
        "requests": len(given),
        "rows_per_s": round(done[1] / seconds, 1),
        "nodes_per_s": round(done[2] / seconds, 1),
        "steps_per_s": round(done[0] / seconds, 1),
        "rows_per_step": round(done[1] / max(done[0], 1), 2),
        "accepted_per_pass": round(requests.accepted / requests.passes, 3),
        "bytes_per_token": round(requests.bytes / requests.tokens, 1),
        "curve_ms": {leaves: round(1e3 * seconds, 2) for leaves, seconds in curve.items()},
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench serving`."""
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--passes", type=int, default=25)
    parser.add_argument("--pass-ms", type=float, default=100.0)
    parser.add_argument("--rtt-ms", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="OUT")


def run(options: argparse.Namespace) -> int:
    """Measures and prints; returns 0."""
    given = completions(max(options.requests), (options.passes + WARM_UP) * MAX_TOKENS, options.seed)
    times = options.passes, options.pass_ms / 1e3, options.rtt_ms / 1e3
    figures = [measure(given[:count], *times) for count in options.requests]
    verbs.print_json({"runs": figures}, options.json)
    return 0
