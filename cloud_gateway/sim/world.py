"""One simulated request: the shipped controller and drafting machine, a virtual link, modelled step times."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cloud_gateway.core.accept import walk
from cloud_gateway.core.controller import CatchUp, Controller, Costs, Draft, LinkView, Outcome, Verify, Wait
from cloud_gateway.core.estimators import RttEstimator, StepClock
from cloud_gateway.core.flatten import FlatTree, flatten
from cloud_gateway.core.merge import CandidateTree
from cloud_gateway.sim.clock import Clock
from cloud_gateway.sim.network import Pipe
from cloud_gateway.sim.process import TokenProcess, child, draft
from edgespec.core.drafting import Drafting
from edgespec.core.link_model import LinkModel
from edgespec.core.messages import Commit, Frame, Tree, encode
from edgespec.core.numbers import interpolate
from edgespec.core.tree import Node, SpeculationTree

SESSION = bytes(16)
PROMPT_LEN = 2
LIMIT_S = 3600.0
PING_EVERY_S = 0.05
"""Spacing of the link's round-trip samples."""
LEAST_BATCH = 4
"""Tokens of a catch-up batch, however fast the target is."""
PRIMING_PINGS = 64
"""Round trips measured before the request."""


class Curve:
    """Seconds of a pass by its rows: linear between the points given, level beyond them."""

    def __init__(self, points: Mapping[int, float]) -> None:
        self._points = dict(points)
        self._known: dict[int, float] = {}

    def __call__(self, rows: int) -> float:
        """Seconds for this many rows."""
        if rows not in self._known:
            self._known[rows] = interpolate(self._points, rows)
        return self._known[rows]

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._points.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Curve) and self._points == other._points


@dataclass(frozen=True, slots=True)
class Steps:
    """Modelled step times."""

    verify: Curve
    local: Curve | None
    """None: the gateway has no draft of its own."""
    worker: Curve
    catch_up_s: float = 0.0
    """Per committed token that the local draft has not seen, when it next drafts (WANSpec 4.5: no measurable time)."""
    unread: int = 0
    """Tokens of the prompt that it has not seen at time 0, where the policy does not have it read along."""
    leaves: int = 16
    """Most leaves of one local pass."""


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

    def __init__(self, clock: Clock, drafting: Drafting, process: TokenProcess, steps: Steps, origin: int) -> None:
        self.clock, self.drafting, self.process, self.steps = clock, drafting, process, steps
        self.deliver: Callable[[Tree, float], None] = lambda frame, arrival: None
        self.states = States(process, origin)
        self.up: Pipe
        self.busy = False
        self.count = 0

    def connect(self, up: Pipe, deliver: Callable[[Tree, float], None]) -> None:
        """Where frames go."""
        self.up, self.deliver = up, deliver

    def commit(self, prefix_len: int, tokens: list[int], digest: bytes | None = None) -> None:
        """A commit arrived."""
        self.drafting.commit(prefix_len, tokens, digest)
        self.step()

    def step(self) -> None:
        """Begins the next draft step where there is something to draft."""
        if self.busy:
            return
        leaves = self.drafting.candidates()
        if not leaves:
            return
        self.busy = True
        tree = self.drafting.tree
        states = [self.states.of(tree, leaf) for leaf in leaves]
        took = self.steps.worker(len(leaves))
        self.clock.at(self.clock.now + took, lambda: self._stepped(leaves, states))

    def _stepped(self, leaves: list[Node], states: list[int]) -> None:
        self.busy = False
        self.count += 1
        self.drafting.record(leaves, [draft(self.process, state) for state in states])
        self._send()
        self.step()

    def _send(self) -> None:
        """Streams what is new; while the socket is busy it stays in the tree, where a commit still prunes it."""
        clock = self.clock
        if self.drafting.has_delta and self.up.busy_until() > clock.now:
            clock.at(self.up.busy_until(), self._send)
            return
        while (frame := self.drafting.delta()) is not None:
            size = len(encode(Frame(SESSION, self.up.messages + 1, frame)))
            self.deliver(frame, self.up.send(clock.now, size))


class Gateway:
    """Drives `Controller`, `CandidateTree` and `walk` as the engine does, one request alone on the accelerator."""

    def __init__(
        self, clock: Clock, controller: Controller, process: TokenProcess, steps: Steps, prompt: list[int], goal: int
    ) -> None:
        self.clock, self.controller, self.process, self.steps = clock, controller, process, steps
        self.tree = CandidateTree(prompt)
        self.origin = len(prompt) - 1
        self.goal = self.origin + goal
        self.states = States(process, self.origin)
        self.result = Result()
        self.commit: Callable[[int, list[int], bytes], None] = lambda prefix_len, tokens, digest: None
        self.rtt: RttEstimator | None = None
        self.worker_step = StepClock(steps.worker(1))
        self._inbox: list[tuple[Tree, float]] = []
        self._heard = False
        self._busy = self.done = False
        self._waits = 0
        self._seen = self.origin - (0 if controller.drafts_from_start else steps.unread)

    def frame(self, frame: Tree) -> None:
        """A frame arrived; it is merged before the next decision, as in the engine."""
        self._inbox.append((frame, self.clock.now))
        self.act()

    def act(self) -> None:
        """Asks the controller what to do, unless a pass is under way."""
        if self._busy or self.done:
            return
        clock, tree = self.clock, self.tree
        self._take_in()
        action = self.controller.decide(tree, self._link(), self._costs(), clock.now)
        match action:
            case Verify(nodes):
                flat = flatten(tree.root, nodes)
                self._begin(self.steps.verify(len(flat)), lambda: self._verified(flat))
            case Draft():
                leaves = action.leaves[: self.steps.leaves]
                self.result.local_passes += 1
                self.result.local_tokens += len(leaves)
                assert self.steps.local is not None, "a policy drafts where there is no draft"
                took = self.steps.local(len(leaves)) + self._debt_s()
                self._seen = tree.root.position
                self._begin(took, lambda: self._drafted(leaves, action.width))
            case CatchUp():
                tokens = min(self._owed(), self._batch())
                self._seen += tokens
                self._begin(tokens * self.steps.catch_up_s, lambda: None)
            case Wait(until):
                self._wait(until)

    def _take_in(self) -> None:
        for frame, arrived in self._inbox:
            merged = self.tree.merge("worker", frame, "worker")
            self._heard = self._heard or merged.useful
            self.result.frames += 1
            self.result.useful_frames += merged.useful
            self.controller.received(merged, arrived)
            self.worker_step.frame(arrived)
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
            raise RuntimeError(f"{self.controller.name} waits for a moment that has passed")
        self._waits += 1
        mine = self._waits
        clock.at(until, lambda: self.act() if mine == self._waits else None)

    def _drafted(self, leaves: Sequence[Node], width: int) -> None:
        tree = self.tree.tree
        for leaf in leaves:
            proposal = draft(self.process, self.states.of(tree, leaf))
            pairs = zip(proposal.tokens[:width], proposal.costs[:width], strict=True)
            for token, cost in pairs:
                self.tree.add_local(leaf, token, cost, proposal.entropy)

    def _verified(self, flat: FlatTree) -> None:
        position, now = self.tree.root.position, self.clock.now
        targets = self.process.targets
        left = self.goal - position

        def choose(row: int) -> int:
            return targets[position - self.origin + flat.depths[row] + 1]

        taken = walk(flat, choose, limit=left)
        tokens = taken.tokens
        self.tree.advance(tokens)
        result = self.result
        result.rounds += 1
        result.tokens += len(tokens)
        if not taken.at_leaf:
            self.worker_step.broken()
        if result.tokens >= self.goal - self.origin:
            self.done = True
            result.seconds = now
            return
        prefix = self.tree.prefix
        self.commit(len(prefix) - len(tokens), tokens, prefix.digest)
        entropy = self.process.target_entropies[self.tree.root.position - self.origin]
        outcome = Outcome(max(flat.depths), len(tokens), taken.at_leaf, entropy, self.tree.root.position)
        self.controller.verified(outcome, now)

    def _link(self) -> LinkView | None:
        if self.rtt is None or self.rtt.srtt_s is None:
            return None
        return LinkView(self.rtt.srtt_s, self.rtt.high_s, self.worker_step.step_s, self._heard)

    def _owed(self) -> int:
        return self.tree.root.position - self._seen

    def _debt_s(self) -> float:
        return self._owed() * self.steps.catch_up_s

    def _batch(self) -> int:
        """Tokens of one catch-up batch, as in cloud_gateway/local.py."""
        return max(LEAST_BATCH, int(self.steps.verify(1) / max(self.steps.catch_up_s, 1e-6)))

    def _costs(self) -> Costs:
        if self.steps.local is None:
            return Costs(self.steps.verify)
        batch_s = self._batch() * self.steps.catch_up_s
        return Costs(self.steps.verify, self.steps.local(1), self._debt_s(), batch_s, self.steps.leaves)


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
        worker = Worker(clock, drafting, process, steps, gateway.origin)
        _connect(clock, gateway, worker, up, down, ping_rng)
        worker.commit(0, prompt)
    gateway.act()
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

    def send_commit(prefix_len: int, tokens: list[int], digest: bytes) -> None:
        body = Commit(1, 1, prefix_len, tokens, digest)
        arrival = down.send(clock.now, len(encode(Frame(SESSION, down.messages + 1, body))))
        clock.at(arrival, lambda: worker.commit(prefix_len, tokens, digest))

    gateway.commit = send_commit
    gateway.rtt = estimator = RttEstimator()
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
