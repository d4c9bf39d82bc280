"""`python -m tools.bench rounds`: the gateway's own time in one round, everything except the models' passes.

One round here is what a round is in service: the frames that arrive meanwhile (verified, decoded, merged), the
decision, flattening, the walk, committing, signing and encoding the `Commit`, the token event and its SSE chunk. The
target answers from a table that was computed before; the engine's clock is driven, and says that a pass took what a
real one takes, so that policies decide as in service. All on one thread, so that nothing is hidden by overlap. The
defaults are those that are shipped: `adaptive`, a worker that drafts best first, at most 16 candidates verified.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec import convert
from numpy.typing import NDArray

from cloud_gateway.core.policies.actions import Action, Costs, LinkView
from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.policies.policy import Policy
from cloud_gateway.core.policies.registry import POLICIES
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.requests.request import GenerationRequest, TokensEvent
from cloud_gateway.core.requests.router import LinkedWorker
from cloud_gateway.core.trace.record import InputLog
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.engine.loop import Engine
from cloud_gateway.links.registry import Registry, WorkerInfo
from cloud_gateway.models.target_model import Pass, Work
from cloud_gateway.process.collector import spare_rounds
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings
from cloud_gateway.process.recorder import Recorder
from edgespec.core.drafting.algorithm2 import Drafting, DraftRule, Proposal
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import Commit, Open, ToWorker, Tree, check_tree_shape
from tools import verbs
from tools.bench.frames import linked_sessions

VOCAB = 49_152
WORKER = LinkedWorker("w", 0.0, 0.0, 0.006, paused=False)
REPEATS = 30
WARM_UP = 50
"""Rounds before those measured: caches fill."""
PASS_S, ROW_S = 0.030, 0.001
"""What a pass of the target is said to take, and each of its rows besides: the demo's model on one core."""


class InstantTarget:
    """Says that the next token is a fixed function of the last one, at once."""

    vocab_size, context, slots, eos, kv_tokens = VOCAB, 1_000_000, 8, frozenset[int](), sys.maxsize

    def __init__(self) -> None:
        self.passes: Sequence[Pass] = ()
        self.now, self.spent_s = 0.0, 0.0
        """The engine's clock, and the real time that was spent in `verify`."""
        rng = np.random.default_rng(1)
        self.following: list[int] = rng.permutation(VOCAB).tolist()
        self._row: NDArray[np.float32] = rng.normal(0, 2, VOCAB).astype(np.float32)

    def wait_until(self, wake_at: float | None) -> None:
        """The clock goes on to this time, if it is not past it; a turn may have moved it already."""
        self.now = max(self.now, wake_at or 0.0)

    def open(self, tokens: Sequence[int], scope: bytes = b"", room: int = 0) -> tuple[int, int]:
        return 0, len(tokens)

    def resize(self, slot: int, room: int) -> None:
        """Nothing to do."""

    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        """Nothing to do."""

    def verify(self, batch: Sequence[Work]) -> list[InstantRows]:
        """Looks every row up."""
        began = time.perf_counter()
        self.passes = [Pass(len(work.tree), PASS_S + ROW_S * len(work.tree)) for work in batch]
        self.now += sum(one.seconds for one in self.passes)
        found = [InstantRows([self.following[t] for t in work.tree.tokens], self._row) for work in batch]
        self.spent_s += time.perf_counter() - began
        return found

    def keep(self, slot: int, rows: Sequence[int]) -> None:
        """Nothing to do."""

    def close(self, slot: int) -> None:
        """Nothing to do."""


class InstantRows:
    """What `InstantTarget` says of one tree."""

    def __init__(self, argmax: list[int], row: NDArray[np.float32]) -> None:
        self.argmax, self._row = argmax, row

    def entropy(self, row: int) -> float:
        return 0.1

    def logits(self, row: int) -> NDArray[np.float32]:
        """The same logits everywhere."""
        return self._row


class BenchLink:
    """The engine's link layer over the two sessions; the worker's own work is done between rounds and not timed."""

    def __init__(self, target: InstantTarget, right: float, branching: int) -> None:
        """`branching`: children that a node gets at most by Algorithm 2; 0: the worker drafts best first."""
        self.worker, self.gateway = linked_sessions()
        self.target, self.right, self.branching = target, right, branching
        self.drafting: Drafting | None = None
        self.wire: list[bytes] = []
        self._rng = random.Random(1)

    def linked(self) -> Mapping[str, LinkedWorker]:
        return {"w": WORKER}

    def view(self, worker: str) -> LinkedWorker | None:
        return WORKER

    def send(self, worker: str, body: ToWorker) -> None:
        """Signs and encodes; timed."""
        self.wire.append(self.gateway.send(body))

    def punish(self, worker: str, error: RemoteProtocolError, request: int) -> None:
        raise error

    def audited(self, worker: str, key: str, claimed: float, accepted: int) -> None:
        """Nobody is judged here."""

    def diverged(self, worker: str) -> None:
        """Its frames come when the bench says so."""

    def note(self, worker: str, reason: str, text: str) -> None:
        raise AssertionError(text)

    def draft(self, steps: int) -> list[bytes]:
        """The worker's turn: takes in what was sent, drafts, and signs its frames; not timed."""
        for data in self.wire:
            for event in self.worker.receive(data, 0.0):
                if isinstance(event, Open):
                    self.drafting = self._begin(event)
                    self.drafting.commit(0, event.tokens)
                elif isinstance(event, Commit) and self.drafting is not None:
                    self.drafting.commit(event.prefix_len, event.tokens, event.prefix_hash)
        self.wire.clear()
        frames: list[bytes] = []
        for _ in range(steps):
            assert self.drafting is not None
            leaves = self.drafting.candidates()
            self.drafting.record(leaves, [self._proposal(leaf.token) for leaf in leaves])
            while (tree := self.drafting.delta()) is not None:
                frames.append(self.worker.send(tree))
        return frames

    def _begin(self, opening: Open) -> Drafting:
        of = opening.request, opening.epoch, opening.prompt_len
        if not self.branching:
            return BestFirst(*of, BestFirstRule(sequences=4))
        return Drafting(*of, DraftRule(branching=self.branching, theta=0.5, sequences=4))

    def _proposal(self, token: int) -> Proposal:
        if token < 0:
            assert self.drafting is not None
            token = self.drafting.prefix.tokens[-1]
        best = self.target.following[token]
        others = [token for token in (7, 8, 9, 10) if token != best][:3]
        order = [best, *others] if self._rng.random() < self.right else [others[0], best, *others[1:]]
        return Proposal(order, [0.2, 1.8, 3.0, 4.0], 0.8)


@dataclass(frozen=True, slots=True)
class Setup:
    """What is measured."""

    rounds: int = 2000
    right: float = 0.8
    branching: int = 0
    policy: str = "adaptive"
    frames: int = 4
    """Frames that arrive in each round."""


def measure(setup: Setup) -> dict[str, Any]:
    """Microseconds of each part of a round, and of a decision of the policy: medians, and 99th percentiles."""
    decisions = Decisions()
    figures = asyncio.run(_measure(setup, decisions))  # type: ignore[arg-type]
    spent = decisions.seconds[-round(len(decisions.seconds) * setup.rounds / (setup.rounds + WARM_UP)) :]
    return figures | {
        "decision_us": round(statistics.median(spent) * 1e6, 1),
        "decision_p99_us": round(float(np.percentile(spent, 99)) * 1e6, 1),
        "decisions_per_round": round(len(spent) / setup.rounds, 2),
    }


class Decisions:
    """In the recorder's place: becomes the request's policy, and measures its decisions, in the thread's own time."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def listen(self, generation: Generation, settings: PolicySettings, curve: StepCurve) -> None:
        """As the recorder's."""
        self.policy, generation.policy = generation.policy, cast(Policy, self)

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """As the policy decides."""
        began = time.thread_time()
        action = self.policy.decide(tree, link, costs, now)
        self.seconds.append(time.thread_time() - began)
        return action

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)


class Calls:
    """In the recorder's place: keeps the calls that its log would get."""

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[Any, ...], int]] = []

    def listen(self, generation: Generation, settings: PolicySettings, curve: StepCurve) -> None:
        """As the recorder's."""
        self.of, generation.listener = (generation, settings, curve), self

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given: self.made.append((name, given, self.of[2].samples))

    def again(self) -> float:
        """Seconds of the same calls on a fresh log."""
        log, curve = InputLog(*self.of, 0, 1 << 40), self.of[2]
        began = time.perf_counter()
        for name, given, curve.samples in self.made:
            getattr(log, name)(*given)
        return time.perf_counter() - began


def measure_log(setup: Setup) -> dict[str, Any]:
    """What the flight recorder adds to a round: the least of REPEATS times, since what else runs can only add to it."""
    calls = Calls()
    round_us = asyncio.run(_measure(setup, calls))["round_us"]  # type: ignore[arg-type]
    spent = min(calls.again() for _ in range(REPEATS)) / (setup.rounds + WARM_UP)
    return {"rounds": setup.rounds, "round_us": round_us, "recorder_us": round(spent * 1e6, 1)}


def views_us(workers: int = 100) -> float:
    """Microseconds in which the engine gets the view of so many linked workers, as in a turn: a minimum of many."""
    registry = Registry()
    absent: Any = None
    for number in range(workers):
        registry.add(WorkerInfo(f"{number:016x}", "lab", b"", "", absent, wire=absent))
    views = registry.views
    return min(timeit.repeat(lambda: [views.get(worker) for worker in views], number=1, repeat=100)) * 1e6


async def _measure(setup: Setup, recorder: Recorder | None) -> dict[str, Any]:
    target = InstantTarget()
    link = BenchLink(target, setup.right, setup.branching)
    settings = engine_settings(GatewaySettings(policy=convert({"name": setup.policy}, PolicySettings)))
    engine = Engine(target, None, settings, link, clock=lambda: target.now, recorder=recorder)
    stream = engine.submit(GenerationRequest(list(range(100, 190)), 10**6, ignore_eos=True))
    engine.use_loop(asyncio.get_running_loop())
    spans: list[tuple[float, float, float]] = []
    tokens = frames_seen = 0
    spare_rounds()  # as `cloud-gateway serve` does
    while not engine.stats.rounds:  # admits the request, reads its prompt, waits for no frame, decodes plainly
        target.wait_until(engine.turn())
    await asyncio.sleep(0)
    await anext(aiter(stream))
    for number in range(setup.rounds + WARM_UP):
        frames = link.draft(steps=setup.frames)
        began = time.perf_counter()
        for data in frames:
            for tree in link.gateway.receive(data, 0.0):
                assert isinstance(tree, Tree)
                check_tree_shape(tree, VOCAB)
                engine.post(FrameArrived("w", tree))
        received = time.perf_counter()
        before, modelled = engine.stats.rounds, target.spent_s
        while engine.stats.rounds == before:
            target.wait_until(engine.turn())
        turned = time.perf_counter() - (target.spent_s - modelled)
        resumed = time.perf_counter()
        await asyncio.sleep(0)  # the event loop's share: signs and encodes the commit, hands the tokens on
        event = await anext(aiter(stream))
        assert isinstance(event, TokensEvent)
        chunk = json.dumps({"choices": [{"index": 0, "delta": {"content": "x" * len(event.tokens)}}]})
        sent = time.perf_counter()
        if number >= WARM_UP:
            spans.append((received - began, turned - received, sent - resumed))
            tokens += len(event.tokens)
            frames_seen += len(frames)
        assert chunk
    receive, run, send = np.array(spans).T * 1e6
    both = run + send
    parts = {"receive": receive, "engine": run, "send": send, "engine_and_send": both, "round": receive + both}
    return {
        "rounds": setup.rounds,
        **{f"{name}_us": round(float(np.median(values)), 1) for name, values in parts.items()},
        **{f"{name}_p99_us": round(float(np.percentile(values, 99)), 1) for name, values in parts.items()},
        "views_of_100_workers_us": round(views_us(), 1),
        "frames_per_round": round(frames_seen / setup.rounds, 2),
        "tokens_per_round": round(tokens / setup.rounds, 2),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench rounds`."""
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument(
        "--match", type=float, default=0.8, help="share of places where the draft's first choice is right"
    )
    parser.add_argument("--branching", type=int, default=0, help="of Algorithm 2; 0: best first, as shipped")
    parser.add_argument("--policy", choices=sorted(POLICIES), default="adaptive")
    parser.add_argument("--frames", type=int, default=4, help="draft steps of the worker in each round")
    parser.add_argument("--traces", action="store_true", help="what the flight recorder adds to a round")
    parser.add_argument("--json", type=Path, metavar="OUT")


def run(options: argparse.Namespace) -> int:
    """Measures and prints; returns 0."""
    how = measure_log if options.traces else measure
    figures = how(Setup(options.rounds, options.match, options.branching, options.policy, options.frames))
    verbs.print_json(figures, options.json)
    return 0
