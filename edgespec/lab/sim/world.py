"""One simulated request: the shipped controller and drafting machine, a virtual link, modelled step times."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cloud_gateway.core.policies.estimators import RttEstimator, StepClock
from cloud_gateway.core.policies.registry import CatchUp, Controller, Draft, LinkView, Verify, Wait, reads_prompt
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.core.requests.steps import (
    Admitted,
    Assigned,
    Diverged,
    Drafted,
    Finished,
    FrameArrived,
    FrameTaken,
    Keep,
    Send,
    Verified,
)
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.core.verify.flatten import FlatTree
from edgespec.core.drafting.algorithm2 import Drafting, Proposal
from edgespec.core.drafting.tree import Node, SpeculationTree
from edgespec.core.protocol.messages import Commit, Frame, Tree, encode, levels
from edgespec.core.protocol.prefix import prefix_hash
from edgespec.lab.link_model import LinkModel
from edgespec.lab.sim.clock import Clock
from edgespec.lab.sim.local import LocalReading
from edgespec.lab.sim.network import Pipe
from edgespec.lab.sim.process import TokenProcess, child, draft
from edgespec.lab.sim.steps import WIDTHS, Curve, Steps
from edgespec.lab.sim.target import ProcessRows, ProcessVerification

__all__ = ["Curve", "Gateway", "Result", "States", "Steps", "Worker", "run"]

SESSION = bytes(16)
PROMPT_LEN = 2
LIMIT_S = 3600.0
PING_EVERY_S = 0.05
"""Spacing of the link's round-trip samples."""
WORKER = "worker"
UNLIMITED = 2**62
"""Tokens that a slot takes: the context is not what is studied."""
PRIMING_PINGS = 64
"""Round trips measured before the request."""


@dataclass(slots=True)
class Result:
    """What one request took."""

    seconds: float = 0.0
    tokens: int = 0
    rounds: int = 0
    local_passes: int = 0
    local_tokens: int = 0
    """Rows evaluated in local passes."""
    worker_steps: int = 0
    frames: int = 0
    useful_frames: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
    fallbacks: int = 0


class States:
    """Which process state a tree's nodes stand for."""

    def __init__(self, process: TokenProcess, origin: int) -> None:
        self._process, self._origin = process, origin
        self._known: dict[Node, int] = {}

    def of(self, tree: SpeculationTree, node: Node) -> int:
        """The state at a node; the root lies on the target's path by construction."""
        if node is tree.root:
            return node.position - self._origin
        state = self._known.get(node)
        if state is None:
            assert node.parent is not None
            state = self._known[node] = child(self._process, self.of(tree, node.parent), node.token)
        return state


class Worker:
    """Drives `Drafting`: one step at a time, results sent at once, commits taken in as they come."""

    def __init__(
        self, clock: Clock, drafting: Drafting, process: TokenProcess, steps: Steps, origin: int, rng: random.Random
    ) -> None:
        self.clock, self.drafting, self.process, self.steps, self._rng = clock, drafting, process, steps, rng
        self.deliver: Callable[[Tree, float], None] = lambda frame, arrival: None
        self.states = States(process, origin)
        self.up: Pipe
        self.busy = False
        self.count = 0

    def connect(self, up: Pipe, deliver: Callable[[Tree, float], None]) -> None:
        self.up, self.deliver = up, deliver

    def commit(self, commit: Commit) -> None:
        self.drafting.commit(commit.prefix_len, commit.tokens, commit.prefix_hash)
        self.drafting.rhythm.committed(commit.pass_us / 1e6, self.clock.now)
        self.step()

    def step(self) -> None:
        """Begins the next draft step where there is something to draft."""
        if self.busy:
            return
        leaves = self.drafting.candidates()
        self._send(self.clock.now + self.steps.worker(len(leaves)) if leaves else math.inf)
        if not leaves:
            return
        self.busy = True
        tree = self.drafting.tree
        states = [self.states.of(tree, leaf) for leaf in leaves]
        took = self.steps.worker(len(leaves))
        if self.steps.worker_noise:
            took *= 1 + self._rng.expovariate(1 / self.steps.worker_noise)
        self.clock.at(self.clock.now + took, lambda: self._stepped(leaves, states))

    def _stepped(self, leaves: list[Node], states: list[int]) -> None:
        self.busy = False
        self.count += 1
        self.drafting.record(leaves, [draft(self.process, state) for state in states])
        self.step()

    def _send(self, end: float = math.inf) -> None:
        """Sends what should not wait for the end of a step; while the socket is busy it stays in the tree."""
        clock = self.clock
        if not self.drafting.due(clock.now, end, self.up.model.rtt_s):
            return
        if self.up.busy_until() > clock.now:
            clock.at(self.up.busy_until(), self._send)
            return
        while (frame := self.drafting.delta()) is not None:
            size = len(encode(Frame(SESSION, self.up.messages + 1, frame)))
            self.deliver(frame, self.up.send(clock.now, size))


class Gateway:
    """Drives the engine's own request machine, one request alone on the accelerator."""

    def __init__(
        self, clock: Clock, controller: Controller, process: TokenProcess, steps: Steps, prompt: list[int], goal: int
    ) -> None:
        self.clock, self.process, self.steps = clock, process, steps
        self.origin = len(prompt) - 1
        request = GenerationRequest(prompt, goal, ignore_eos=True)
        chosen = ProcessVerification(process)
        self.generation = Generation(1, request, controller, chosen, 0.0, UNLIMITED, offload=True)
        self.generation.handle(Admitted(self.origin), 0.0)
        self.states = States(process, self.origin)
        self.result = Result()
        self.commit: Callable[[Commit], None] = lambda commit: None
        self.rtt: RttEstimator | None = None
        self.worker_step = StepClock(steps.worker(1))
        self._inbox: list[tuple[Tree, float]] = []
        self._busy = self.done = False
        self._waits = 0
        self.local = LocalReading(steps, self.origin - steps.unread)
        says = steps.worker_says or steps.worker
        self._reported = tuple((leaves, says(leaves)) for leaves in WIDTHS)

    @property
    def tree(self) -> CandidateTree:
        """The request's candidates."""
        return self.generation.tree

    def link(self, rtt: RttEstimator, commit: Callable[[Commit], None]) -> None:
        """A worker drafts for the request; it knows the prompt."""
        self.rtt, self.commit = rtt, commit
        self.generation.handle(Assigned(WORKER), 0.0)

    def frame(self, frame: Tree) -> None:
        """A frame arrived; it is merged before the next decision, as in the engine."""
        self._inbox.append((frame, self.clock.now))
        self.act()

    def start(self) -> None:
        """The target has read the prompt. Where the policy wants it read before the first token, the local draft reads
        it now, since both share a device."""
        costs = replace(self.local.costs(self.tree), remaining=self.generation.remaining)
        reads = reads_prompt(self.generation.controller, costs, worker=self._link() is not None)
        if reads and self.local.backlog(self.tree):
            self._begin(self.local.read(self.tree, 0), self.start)
        else:
            self.act()

    def act(self) -> None:
        """Asks the request what to do, unless a pass is under way."""
        if self._busy or self.done:
            return
        self._take_in()
        action = self.generation.decide(self._link(), self.local.costs(self.tree), self.clock.now)
        match action:
            case Verify(nodes):
                flat = self.generation.flatten(self.generation.select(nodes))
                self._begin(self.steps.verify(len(flat)), lambda: self._verified(flat))
            case Draft():
                leaves = action.leaves[: self.steps.leaves]
                self.result.local_passes += 1
                self.result.local_tokens += len(leaves)
                self._begin(self.local.draft(self.tree, leaves), lambda: self._drafted(leaves, action.width))
            case CatchUp(tokens):
                self._begin(self.local.read(self.tree, tokens), lambda: None)
            case Wait(until):
                self._wait(until)

    def _take_in(self) -> None:
        for frame, arrived in self._inbox:
            (taken,) = self.generation.handle(FrameArrived(WORKER, frame), arrived)
            assert isinstance(taken, FrameTaken)
            self.result.frames += 1
            self.result.useful_frames += taken.useful
            self.worker_step.frame(arrived, levels(frame))
        self._inbox.clear()

    def _begin(self, took: float, then: Callable[[], None]) -> None:
        self._busy = True

        def end() -> None:
            self._busy = False
            then()
            self.act()

        self.clock.at(self.clock.now + took, end)

    def _wait(self, until: float) -> None:
        """Sleeps until then or until a frame comes; a deadline that has passed would never end."""
        clock = self.clock
        if until <= clock.now:
            raise RuntimeError(f"{self.generation.controller.name} waits for a moment that has passed")
        self._waits += 1
        mine = self._waits
        clock.at(until, lambda: self.act() if mine == self._waits else None)

    def _drafted(self, leaves: Sequence[Node], width: int) -> None:
        found = [draft(self.process, self.states.of(self.tree.tree, leaf)) for leaf in leaves]
        cut = [Proposal(one.tokens[:width], one.costs[:width], one.entropy) for one in found]
        self.generation.handle(Drafted(leaves, cut), self.clock.now)

    def _verified(self, flat: FlatTree) -> None:
        rows = ProcessRows(self.process, self.tree.root.position - self.origin, flat)
        path = self._path()
        outputs = self.generation.handle(Verified(flat, rows), self.clock.now)
        self.result.rounds += 1
        self.done = any(isinstance(output, Finished) for output in outputs)
        for output in outputs:
            match output:
                case Keep(_, tokens):
                    self.result.tokens += len(tokens)
                    self.local.committed(path[: len(tokens)], self.tree)
                case Diverged():
                    self.worker_step.broken()
                case Send(_, Commit() as commit) if not self.done:
                    self.commit(commit)
        if self.done:
            self.result.seconds = self.clock.now

    def _link(self) -> LinkView | None:
        given = self.generation.assignment
        if self.rtt is None or self.rtt.srtt_s is None or given is None:
            return None
        return LinkView(self.rtt.srtt_s, self.rtt.high_s, self.worker_step.step_s, given.ready, self._reported)

    def _path(self) -> list[Node]:
        """The candidates on the target's own path."""
        node, path = self.tree.root, []
        targets = self.process.targets
        while (node := node.children.get(targets[node.position - self.origin + 1])) is not None:  # type: ignore[assignment]
            path.append(node)
        return path


def run(
    controller: Controller,
    drafting: Drafting | None,
    process: TokenProcess,
    net: LinkModel,
    steps: Steps,
    tokens: int,
    seed: int,
) -> Result:
    """Simulates one answer of `tokens` tokens after a prompt of PROMPT_LEN; without `drafting` there is no worker.

    At time 0 the prompt has been read on both sides: the target's prefill and the worker's overlap.
    """
    clock = Clock()
    prompt = [1] * (PROMPT_LEN - 1) + [process.targets[0]]
    gateway = Gateway(clock, controller, process, steps, prompt, tokens)
    down_rng, up_rng, ping_rng = (random.Random(f"{seed} {name}") for name in ("down", "up", "ping"))
    down, up = Pipe(net, down_rng), Pipe(net, up_rng)
    worker: Worker | None = None
    if drafting is not None:
        worker = Worker(clock, drafting, process, steps, gateway.origin, random.Random(f"{seed} worker"))
        _connect(clock, gateway, worker, up, down, ping_rng)
        worker.commit(Commit(1, 1, 0, prompt, prefix_hash(prompt)))
    gateway.start()
    clock.run(lambda: gateway.done, LIMIT_S)
    result = gateway.result
    result.up_bytes, result.down_bytes = up.bytes, down.bytes
    result.worker_steps = worker.count if worker else 0
    result.fallbacks = controller.fallbacks
    emitted = gateway.tree.prefix.tokens[len(prompt) :]
    if emitted != list(process.targets[1 : len(emitted) + 1]):
        raise AssertionError("the answer is not the target's")
    return result


def _connect(clock: Clock, gateway: Gateway, worker: Worker, up: Pipe, down: Pipe, ping_rng: random.Random) -> None:
    net = up.model
    worker.connect(up, lambda frame, arrival: clock.at(arrival, lambda: gateway.frame(frame)))

    def send_commit(body: Commit) -> None:
        arrival = down.send(clock.now, len(encode(Frame(SESSION, down.messages + 1, body))))
        clock.at(arrival, lambda: worker.commit(body))

    estimator = RttEstimator()
    gateway.link(estimator, send_commit)
    probe = Pipe(net, ping_rng)

    def ping() -> None:
        estimator.sample(probe.delay() + probe.delay())

    for _ in range(PRIMING_PINGS):
        ping()
    if net.jitter_s or net.loss:

        def again() -> None:
            ping()
            clock.at(clock.now + PING_EVERY_S, again)

        clock.at(PING_EVERY_S, again)
