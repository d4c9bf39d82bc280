"""`python -m tools.bench rounds`: the gateway's own time in one round, everything except the models' passes.

One round here is what a round is in service: the frames that arrive meanwhile (verified, decoded, merged), the
decision, flattening, the walk, committing, signing and encoding the `Commit`, the token event and its SSE chunk. The
target answers from a table that was computed before; the engine's clock is driven, and says that a pass took what a
real one takes, so that policies decide as in service. All on one thread, in its own processor time, so that nothing is
hidden by overlap. The defaults are those that are shipped: `adaptive`, a worker that drafts best first, at most 16
candidates verified. Times are those of one request and round.

Both ends of a link, authenticated without a socket: what benchmarks send frames through.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec import convert
from numpy.typing import NDArray

from cloud_gateway.core.policies.policy import Action, Costs, LinkView, Policy
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests.choices import Choices
from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.requests.request import GenerationRequest, TokensEvent
from cloud_gateway.core.requests.router import LinkedWorker
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.engine.exchange import PolicyStart, Recording, Stream
from cloud_gateway.engine.loop import Engine
from cloud_gateway.engine.pool import Workers
from cloud_gateway.models.target_model import Pass, Work
from cloud_gateway.models.target_model.slots import HostEntropy, entropy_on_host
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings, spare_rounds
from edgespec.core.drafting.algorithm2 import Drafting, DraftRule, Proposal
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.gateway_session import GatewaySession
from edgespec.core.protocol.handshake import GatewayIdentity, Pin, WorkerIdentity
from edgespec.core.protocol.messages import Commit, Open, ToWorker, Tree, check_tree_shape
from edgespec.core.protocol.session import WorkerSession
from edgespec.core.protocol.signing import SigningKey
from edgespec_lab import verbs
from edgespec_lab.choices import gateway_choices

VOCAB = 49_152
VOCABULARIES = (49_152, 128_256, 262_144)
"""Sizes of which the time of a row's entropy is measured: SmolLM2's, Llama 3's and Gemma 3's."""
ENTROPIES = 200
WARM_UP = 50
"""Rounds before those measured: caches fill."""
PASS_S = 0.030
ROW_S = 0.001
"""What a pass of the target is said to take, and each row of a request besides: the demo's model on one core. Rows of
many requests are said to cost what those of one do, as on an accelerator, so that candidates are worth verifying."""


def linked_sessions() -> tuple[WorkerSession, GatewaySession]:
    """Both ends of an authenticated link, without a socket."""
    spki = b"s" * 32
    digest = b"t" * 32
    worker_key = SigningKey(b"w" * 32)
    gateway_key = SigningKey(b"g" * 32)
    me = WorkerIdentity(worker_key, "bench", digest, b"m" * 32, VOCAB, 4)
    worker = WorkerSession(me, Pin(gateway_key.public, spki), spki, b"1" * 32, 0.0)
    gateway = GatewaySession(GatewayIdentity(gateway_key, "bench", spki, digest), lambda key: "paired", b"2" * 32, 0.0)
    for _ in range(2):
        for data in worker.outgoing():
            gateway.receive(data, 0.0)
        for data in gateway.outgoing():
            worker.receive(data, 0.0)

    return worker, gateway


class InstantTarget:
    """Says that the next token is a fixed function of the last one, at once."""

    vocab_size = VOCAB
    context = 1_000_000
    slots = 64
    eos = frozenset[int]()
    kv_tokens = sys.maxsize

    def __init__(self) -> None:
        self.passes: Sequence[Pass] = ()
        self.now = 0.0
        self.spent_s = 0.0
        """The engine's clock, and the real time that was spent in `verify`."""
        rng = np.random.default_rng(1)
        self.following: list[int] = rng.permutation(VOCAB).tolist()
        self._row: NDArray[np.float32] = rng.normal(0, 2, VOCAB).astype(np.float32)
        self._best = int(self._row.argmax())
        self._entropy = HostEntropy()
        self.entropies = 0
        """How often the entropy of a row was asked for."""

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
        began = time.thread_time()
        rows = sum(len(work.tree) for work in batch)
        self.passes = [Pass(rows, PASS_S + ROW_S * rows / len(batch))]
        self.now += self.passes[0].seconds
        found = [
            InstantRows([self.following[t] for t in work.tree.tokens], self._row, self._row_entropy) for work in batch
        ]
        self.spent_s += time.thread_time() - began
        return found

    def _row_entropy(self) -> float:
        self.entropies += 1
        return self._entropy(self._row, self._best)

    def keep(self, slot: int, rows: Sequence[int]) -> None:
        """Nothing to do."""

    def close(self, slot: int) -> None:
        """Nothing to do."""


class InstantRows:
    """What `InstantTarget` says of one tree."""

    def __init__(self, argmax: list[int], row: NDArray[np.float32], entropy: Callable[[], float]) -> None:
        """`entropy`: the engines' own, of this row."""
        self.argmax = argmax
        self._row = row
        self._entropy = entropy

    def entropy(self, row: int) -> float:
        """Nats, computed in the time of the engines: it is part of the round that is measured."""
        return self._entropy()

    def logits(self, row: int) -> NDArray[np.float32]:
        """The same logits everywhere."""
        return self._row


class BenchLink(Workers):
    """The engine's link layer over sessions; the workers' own work is done between rounds and not timed."""

    def __init__(self, target: InstantTarget, setup: Setup) -> None:
        self.target = target
        self.setup = setup
        self.views = {
            f"w{i}": LinkedWorker(f"w{i}", 0.0, 0.0, 0.006, paused=False, name=f"w{i}") for i in range(setup.workers)
        }
        self.sessions = {name: linked_sessions() for name in self.views}
        self.drafting: dict[str, dict[int, Drafting]] = {name: {} for name in self.views}
        self.wire: dict[str, list[bytes]] = {name: [] for name in self.views}
        self.sent_bytes = self.received_bytes = 0
        self._rng = random.Random(1)

    def linked(self) -> Mapping[str, LinkedWorker]:
        return self.views

    def view(self, worker: str) -> LinkedWorker | None:
        return self.views[worker]

    def send(self, worker: str, bodies: Sequence[ToWorker]) -> None:
        """Signs and encodes; timed."""
        self.wire[worker].append(self.sessions[worker][1].send(*bodies))

    def punish(self, worker: str, error: RemoteProtocolError, request: int) -> None:
        raise error

    def note(self, worker: str, reason: str, text: str) -> None:
        raise AssertionError(text)

    def draft(self, worker: str) -> list[bytes]:
        """A worker's turn: takes in what was sent, drafts, and signs its frames; not timed."""
        session = self.sessions[worker][0]
        drafting = self.drafting[worker]
        for data in self.wire[worker]:
            self.sent_bytes += len(data)
            for event in session.receive(data, 0.0):
                if isinstance(event, Open):
                    drafting[event.request] = self._begin(event)
                    drafting[event.request].commit(0, event.tokens)
                elif isinstance(event, Commit):
                    drafting[event.request].commit(event.prefix_len, event.tokens, event.prefix_hash)
        self.wire[worker].clear()
        frames: list[bytes] = []
        for _ in range(self.setup.frames):
            trees = [tree for one in drafting.values() for tree in self._step(one)]
            if trees:
                frames.append(session.send(*trees))
        self.received_bytes += sum(map(len, frames))
        return frames

    def _step(self, drafting: Drafting) -> Iterator[Tree]:
        leaves = drafting.candidates()
        last = drafting.prefix.tokens[-1]
        drafting.record(leaves, [self._proposal(last if leaf.token < 0 else leaf.token) for leaf in leaves])
        while (tree := drafting.delta()) is not None:
            yield tree

    def _begin(self, opening: Open) -> Drafting:
        of = opening.request, opening.epoch, opening.prompt_len
        if not self.setup.branching:
            return BestFirst(*of, BestFirstRule(sequences=4))
        return Drafting(*of, DraftRule(branching=self.setup.branching, theta=0.5, sequences=4))

    def _proposal(self, token: int) -> Proposal:
        best = self.target.following[token]
        others = [token for token in (7, 8, 9, 10) if token != best][:3]
        order = [best, *others] if self._rng.random() < self.setup.right else [others[0], best, *others[1:]]
        return Proposal(order, [0.2, 1.8, 3.0, 4.0], 0.8)


@dataclass(frozen=True, slots=True)
class Setup:
    """What is measured."""

    rounds: int = 2000
    right: float = 0.8
    branching: int = 0
    policy: str = "adaptive"
    frames: int = 4
    """Draft steps of each worker in a round, and frames of it."""
    requests: int = 1
    workers: int = 1


def measure(setup: Setup, choices: Choices) -> dict[str, Any]:
    """Microseconds of each part of a round, and of a decision of the policy: medians, and 99th percentiles."""
    decisions = Decisions()
    figures = asyncio.run(_measure(setup, choices, decisions))
    spent = decisions.seconds[-round(len(decisions.seconds) * setup.rounds / (setup.rounds + WARM_UP)) :]
    return figures | {
        "entropy_us": {str(size): entropy_us(size) for size in VOCABULARIES},
        "decision_us": round(statistics.median(spent) * 1e6, 1),
        "decision_p99_us": round(float(np.percentile(spent, 99)) * 1e6, 1),
        "decisions_per_round": round(len(spent) / setup.rounds / setup.requests, 2),
    }


def entropy_us(vocab_size: int) -> dict[str, float]:
    """Microseconds of the thread for the entropy of one row on the host: by the engines, and by its slow twin."""
    row = np.random.default_rng(vocab_size).normal(0, 2, vocab_size).astype(np.float32)
    fast = partial(HostEntropy(), row, int(row.argmax()))
    slow = partial(entropy_on_host, row)
    taken: dict[str, list[float]] = {"engines": [], "slow twin": []}

    # In turns, so that what else runs here meets both alike.
    for _ in range(ENTROPIES):
        for name, entropy in (("engines", fast), ("slow twin", slow)):
            began = time.thread_time()
            entropy()
            taken[name].append(time.thread_time() - began)

    return {name: round(statistics.median(values) * 1e6, 1) for name, values in taken.items()}


class Decisions:
    """In the recorder's place: measures the decisions of every request's policy, in the thread's own time."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def listener(self, generation: Generation, start: PolicyStart) -> None:
        """As the recorder's."""
        generation.policy = cast(Policy, _Timed(generation.policy, self.seconds))


class _Timed:
    """A policy whose decisions are timed."""

    def __init__(self, policy: Policy, seconds: list[float]) -> None:
        self.policy = policy
        self.seconds = seconds

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """As the policy decides."""
        began = time.thread_time()
        action = self.policy.decide(tree, link, costs, now)
        self.seconds.append(time.thread_time() - began)
        return action

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)


async def _measure(setup: Setup, choices: Choices, recorder: Recording) -> dict[str, Any]:
    target = InstantTarget()
    link = BenchLink(target, setup)
    policy = convert({"name": setup.policy}, PolicySettings)
    settings = engine_settings(GatewaySettings(policy=policy), choices)
    curve = {rows: PASS_S + ROW_S * rows / setup.requests for rows in (1, *range(4, 17 * setup.requests + 1, 4))}
    engine = Engine(target, None, settings, link, clock=lambda: target.now, recorders=[recorder], curve=curve)
    prompts = [[*range(100, 190), number] for number in range(setup.requests)]
    streams = [engine.submit(GenerationRequest(prompt, 10**6, ignore_eos=True)) for prompt in prompts]
    engine.use_loop(asyncio.get_running_loop())
    spans: list[tuple[float, float, float]] = []
    tokens = frames_seen = done = 0
    spare_rounds()  # as `cloud-gateway serve` does
    active = engine.requests.active
    while not all(one.generation.usage.completion_tokens for one in active.values()) or not engine.stats.rounds:
        target.wait_until(engine.turn())  # admits the requests, reads their prompts, decodes plainly
    await asyncio.sleep(0)
    await _chunks(streams)
    for number in range(setup.rounds + WARM_UP):
        frames = [(worker, data) for worker in link.views for data in link.draft(worker)]
        before = engine.stats.rounds
        modelled = target.spent_s
        began = time.thread_time()
        for worker, data in frames:
            for tree in link.sessions[worker][1].receive(data, 0.0):
                assert isinstance(tree, Tree)
                check_tree_shape(tree, VOCAB)
                engine.post(FrameArrived(worker, tree))
        received = time.thread_time()
        while engine.stats.rounds == before:
            target.wait_until(engine.turn())
        turned = time.thread_time() - (target.spent_s - modelled)
        resumed = time.thread_time()
        await asyncio.sleep(0)  # the event loop's share: signs and encodes the commits, hands the tokens on
        rounds, emitted = await _chunks(streams)
        sent = time.thread_time()
        if number >= WARM_UP:
            spans.append(((received - began) / rounds, (turned - received) / rounds, (sent - resumed) / rounds))
            tokens = tokens + emitted
            frames_seen = frames_seen + len(frames)
            done = done + rounds
        else:
            link.sent_bytes = link.received_bytes = target.entropies = 0
    receive, run, send = np.array(spans).T * 1e6
    both = run + send
    parts = {"receive": receive, "engine": run, "send": send, "engine_and_send": both, "round": receive + both}
    return {
        "rounds": setup.rounds, "requests": setup.requests, "workers": setup.workers,
        **{f"{name}_us": round(float(np.median(values)), 1) for name, values in parts.items()},
        **{f"{name}_min_us": round(float(np.min(values)), 1) for name, values in parts.items()},
        **{f"{name}_p99_us": round(float(np.percentile(values, 99)), 1) for name, values in parts.items()},
        "frames_per_round": round(frames_seen / setup.rounds, 2),
        "requests_per_round": round(done / setup.rounds, 2),
        "entropies_per_round": round(target.entropies / done, 3),
        "tokens_per_round": round(tokens / done, 2),
        "bytes_per_token": round((link.sent_bytes + link.received_bytes) / tokens, 1),
    }  # fmt: skip


async def _chunks(streams: Sequence[Stream]) -> tuple[int, int]:
    """Takes what each request's round brought, and makes its chunk; the number of rounds and of tokens."""
    rounds = tokens = 0
    for stream in streams:
        if not stream._events.empty():
            event = await anext(aiter(stream))
            assert isinstance(event, TokensEvent)
            json.dumps({"choices": [{"index": 0, "delta": {"content": "x" * len(event.tokens)}}]})
            rounds = rounds + 1
            tokens = tokens + len(event.tokens)

    return rounds, tokens


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench rounds`."""
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument(
        "--match", type=float, default=0.8, help="share of places where the draft's first choice is right"
    )
    parser.add_argument("--branching", type=int, default=0, help="of Algorithm 2; 0: best first, as shipped")
    parser.add_argument("--policy", default="adaptive")
    parser.add_argument("--frames", type=int, default=4, help="draft steps of the worker in each round")
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="OUT")


def run(options: argparse.Namespace) -> int:
    """Measures and prints; returns 0."""
    given = options.rounds, options.match, options.branching, options.policy, options.frames
    setup = Setup(*given, options.requests, options.workers)
    verbs.print_json(measure(setup, gateway_choices(setup.policy)), options.json)
    return 0
