"""One simulated request: the shipped controller and drafting machine, a virtual link, modelled step times."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from cloud_gateway.core.policies.estimators import RttEstimator, StepClock
from cloud_gateway.core.policies.policy import CatchUp, Draft, LinkView, Policy, Verify, Wait
from cloud_gateway.core.requests.events import (
    Admitted,
    Chosen,
    Drafted,
    Event,
    Finished,
    FrameArrived,
    FrameTaken,
    Send,
    Status,
    Verified,
    WorkerChanged,
)
from cloud_gateway.core.requests.generation import Bounds, Generation
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.algorithm2 import Drafting, Proposal
from edgespec.core.drafting.tree import BranchShare, Node, SpeculationTree
from edgespec.core.protocol.digests import prefix_hash
from edgespec.core.protocol.messages import Commit, Frame, Share, Tree, encode, levels
from edgespec_lab.link_model import LinkModel
from edgespec_lab.sim.network import Clock, Pipe
from edgespec_lab.sim.process import ProcessRows, ProcessVerification, TokenProcess, child, draft
from edgespec_lab.sim.steps import Curve, LocalReading, Steps

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
    accepted: int = 0
    """Candidates."""
    by_worker: list[dict[str, int]] = field(default_factory=list)
    """Of each worker, the first one first, as in the usage of a request."""


class States:
    """Which process state a tree's nodes stand for."""

    def __init__(self, process: TokenProcess, origin: int) -> None:
        self._process = process
        self._origin = origin
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
        self.clock = clock
        self.drafting = drafting
        self.process = process
        self.steps = steps
        self._rng = rng
        self.deliver: Callable[[Tree, float], None] = lambda frame, arrival: None
        self.states = States(process, origin)
        self.up: Pipe
        self.down: Pipe
        self.name = f"{WORKER}{_nth(drafting)}"
        self.busy = False
        self.count = 0

    def connect(self, up: Pipe, down: Pipe, deliver: Callable[[Tree, float], None]) -> None:
        self.up = up
        self.down = down
        self.deliver = deliver

    def take(self, body: Commit | Share) -> None:
        """Takes in what the gateway sent."""
        if isinstance(body, Share):
            self.drafting.part = BranchShare(body.index, body.count)
        else:
            self.drafting.commit(body.prefix_len, body.tokens, body.prefix_hash)
            self.drafting.rhythm.committed(body.pass_us / 1e6, self.clock.now)
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
        if self.up.busy_until > clock.now:
            clock.at(self.up.busy_until, self._send)
            return

        while (frame := self.drafting.delta()) is not None:
            size = len(encode(Frame(SESSION, self.up.messages + 1, [frame])))
            self.deliver(frame, self.up.send(clock.now, size))


class Gateway:
    """Drives the engine's own request machine, one request alone on the accelerator."""

    def __init__(
        self, clock: Clock, controller: Policy, process: TokenProcess, steps: Steps, prompt: list[int], goal: int
    ) -> None:
        self.clock = clock
        self.process = process
        self.steps = steps
        self.origin = len(prompt) - 1
        request = GenerationRequest(prompt, goal, ignore_eos=True)
        chosen = ProcessVerification(process)
        self.generation = Generation(1, request, controller, chosen, Bounds(UNLIMITED), offload=True)
        self.generation.handle(Admitted(self.origin), 0.0)
        self.states = States(process, self.origin)
        self.result = Result()
        self._workers: dict[str, tuple[RttEstimator, StepClock, Callable[[Commit | Share], None]]] = {}
        self._inbox: list[tuple[FrameArrived | WorkerChanged, float]] = []
        self._busy = self.done = False
        self._waits = 0
        self._on_path: Sequence[Node] = ()
        """Candidates on the target's path before the latest pass."""
        self.local = LocalReading(steps, self.origin - steps.unread)

    @property
    def tree(self) -> CandidateTree:
        """The request's candidates."""
        return self.generation.tree

    def link(self, worker: str, rtt: RttEstimator, send: Callable[[Commit | Share], None]) -> None:
        """One worker more drafts for the request; it knows the prompt, and `send` brings it all else."""
        beside = bool(self._workers)
        self._workers[worker] = rtt, StepClock(self.steps.worker(1)), send
        self._step(WorkerChanged(worker, "beside" if beside else "assigned"), 0.0)

    def gone(self, worker: str) -> None:
        """A worker's link has ended."""
        self._inbox.append((WorkerChanged(worker, "gone"), self.clock.now))
        self.act()

    def frame(self, worker: str, frame: Tree) -> None:
        """A frame arrived; it is merged before the next decision, as in the engine."""
        self._inbox.append((FrameArrived(worker, frame), self.clock.now))
        self.act()

    def start(self, after_s: float = 0.0) -> None:
        """The target has read the prompt, or has after so long. Where the policy wants it read before the first token,
        the local draft reads it then, since both share a device."""
        if after_s > 0:
            self._begin(after_s, self.start)
            return

        costs = replace(self.local.costs(self.tree), remaining=self.generation.remaining)
        reads = self.generation.policy.reads_prompt(costs, worker=self._link() is not None)
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
        for event, arrived in self._inbox:
            self._step(event, arrived)
            if isinstance(event, FrameArrived):
                self._workers[event.worker][1].frame(arrived, levels(event.frame))
        self._inbox.clear()

    def _step(self, event: Event, now: float) -> None:
        for effect in self.generation.handle(event, now):
            match effect:
                case FrameTaken():
                    self.result.frames += 1
                    self.result.useful_frames += effect.useful
                case Send():
                    self._send(effect)
                case Chosen(tokens=tokens):
                    self.result.tokens += len(tokens)
                    self.local.committed(self._on_path[: len(tokens)], self.tree)
                case Finished():
                    self.done = True
                    self.result.seconds = self.clock.now

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
            raise RuntimeError(f"{self.generation.policy.name} waits for a moment that has passed")
        self._waits += 1
        mine = self._waits
        clock.at(until, lambda: self.act() if mine == self._waits else None)

    def _drafted(self, leaves: Sequence[Node], width: int) -> None:
        found = [draft(self.process, self.states.of(self.tree.tree, leaf)) for leaf in leaves]
        cut = [Proposal(one.tokens[:width], one.costs[:width], one.entropy) for one in found]
        self._step(Drafted(leaves, cut), self.clock.now)

    def _verified(self, flat: FlatTree) -> None:
        rows = ProcessRows(self.process, self.tree.root.position - self.origin, flat)
        self._on_path = self._path()
        self.result.rounds += 1
        self._step(Verified(flat, rows), self.clock.now)

    def _send(self, message: Send) -> None:
        """Commits and shares; nothing is sent any more when all tokens are there."""
        body = message.body
        if isinstance(body, Commit | Share) and self.generation.status is not Status.FINISHED:
            if message.diverged:
                self._workers[message.worker][1].broken()
            self._workers[message.worker][2](body)

    def _link(self) -> LinkView | None:
        given = self.generation.assignment
        if given is None:
            return None
        rtt, step, _ = self._workers[given.worker]
        assert rtt.srtt_s is not None
        return LinkView(rtt.srtt_s, rtt.high_s, step.step_s, given.ready)

    def _path(self) -> list[Node]:
        """The candidates on the target's own path."""
        node = self.tree.root
        path = []
        targets = self.process.targets
        while (node := node.children.get(targets[node.position - self.origin + 1])) is not None:  # type: ignore[assignment]
            path.append(node)
        return path


def run(
    controller: Policy,
    drafting: Sequence[Drafting],
    process: TokenProcess,
    net: LinkModel,
    steps: Steps,
    tokens: int,
    seed: int,
    *,
    drafts: Sequence[TokenProcess] = (),
    leaves_s: float = math.inf,
    ahead_s: float = 0.0,
) -> Result:
    """Simulates one answer of `tokens` tokens after a prompt of PROMPT_LEN.

    At time 0 the prompt has been read on both sides: the target's prefill and the workers' overlap. `drafting`: of each
    worker that shares the request, of epochs 1, 2, ...; each has a link of its own. The first leaves after `leaves_s`.
    `drafts`: what each worker's draft proposes for the same targets; empty: as the gateway's own draft does.
    """
    clock = Clock()
    prompt = [1] * (PROMPT_LEN - 1) + [process.targets[0]]
    gateway = Gateway(clock, controller, process, steps, prompt, tokens)
    phases = random.Random(f"{seed} phases")
    workers = [
        Worker(clock, machine, proposes, steps, gateway.origin, random.Random(f"{seed} worker{_nth(machine)}"))
        for machine, proposes in zip(drafting, drafts or [process] * len(drafting), strict=True)
    ]
    for worker in workers:
        _connect(clock, gateway, worker, net, seed)
    for worker in workers:
        whole = Commit(1, worker.drafting.epoch, 0, prompt, prefix_hash(prompt))
        if worker is workers[0]:
            worker.take(whole)
        else:  # machines are not in step
            clock.at(phases.random() * steps.worker(1), partial(worker.take, whole))
    if workers and leaves_s < math.inf:
        clock.at(leaves_s, lambda: gateway.gone(workers[0].name))
    gateway.start(ahead_s)
    clock.run(lambda: gateway.done, LIMIT_S)
    result = gateway.result
    result.seconds -= ahead_s
    result.up_bytes = sum(worker.up.bytes for worker in workers)
    result.down_bytes = sum(worker.down.bytes for worker in workers)
    result.worker_steps = sum(worker.count for worker in workers)
    result.fallbacks = controller.fallbacks
    usage = gateway.generation.usage
    result.accepted = sum(usage.accepted.values())
    result.by_worker = list(usage.by_worker.values())
    emitted = gateway.tree.prefix.tokens[len(prompt) :]
    if emitted != list(process.targets[1 : len(emitted) + 1]):
        raise AssertionError("the answer is not the target's")

    return result


def _nth(drafting: Drafting) -> str:
    """What a worker's random numbers and name have after those of the first one."""
    if drafting.epoch == 1:
        return ""
    return f" {drafting.epoch}"


def _connect(clock: Clock, gateway: Gateway, worker: Worker, net: LinkModel, seed: int) -> None:
    nth = _nth(worker.drafting)
    down, up, probe = (Pipe(net, random.Random(f"{seed} {name}{nth}")) for name in ("down", "up", "ping"))
    worker.connect(up, down, lambda frame, arrival: clock.at(arrival, lambda: gateway.frame(worker.name, frame)))

    def send(body: Commit | Share) -> None:
        size = len(encode(Frame(SESSION, down.messages + 1, [body])))
        clock.at(down.send(clock.now, size) + worker.steps.worker_behind_s, lambda: worker.take(body))

    estimator = RttEstimator()

    def ping() -> None:
        estimator.sample(probe.delay() + probe.delay())

    def ping_again() -> None:
        ping()
        clock.at(clock.now + PING_EVERY_S, ping_again)

    for _ in range(PRIMING_PINGS):
        ping()
    gateway.link(worker.name, estimator, send)
    if net.varies:
        clock.at(PING_EVERY_S, ping_again)
