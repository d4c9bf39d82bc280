"""Whatever may happen to a request, in any order, without a clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.policies.policy import CatchUp, Costs, Draft, LinkView, Verify, Wait
from cloud_gateway.core.policies.registry import NAMES, make
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.events import TABLE, Listener, Status
from cloud_gateway.core.requests.generation import Bounds, Generation
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.core.verify.verification import SharedNoise
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.ranking import Spread
from edgespec.core.protocol.messages import Open, Tree
from tests.support.constraints import ForcesFive
from tools.doubles.model import HASH, VOCAB, Rows

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
COUNT = 25
CONTEXT = 40
"""Tokens asked for, and of a slot: the last seven find no room for a tree of sixteen."""
FORCING = range(8, 20)
ENDS = frozenset({0, 1})
RARELY = st.integers(0, 1 << 16).map(lambda number: number % 40 == 23)
"""Small numbers are drawn far more often than others, so none of them may stand for an end."""


def chosen_after(tokens: Sequence[int], constrained: bool) -> int:
    """Plain decoding's next token."""
    return 5 if constrained and tokens[-1] in FORCING else HASH.argmax(tokens)


class Walk(RuleBasedStateMachine):
    """The text is plain decoding's, and the statuses are the table's."""

    @initialize(policy=st.sampled_from(NAMES), constrained=st.booleans(), eos=st.booleans())
    def begin(self, policy: str, constrained: bool, eos: bool) -> None:
        self.now = 0.0
        self.first = 1
        self.emitted: list[Any] = []
        self.finished: list[Any] = []
        self.outputs: list[Any] = []
        self.rng = random.Random(1)
        self.constrained = constrained
        request = GenerationRequest(
            PROMPT, COUNT, ignore_eos=not eos, constraint=ForcesFive(PROMPT, FORCING) if constrained else None
        )
        chosen = PolicySettings(name=policy, k=3)
        self.curve = StepCurve({1: 0.03})
        self.settings = chosen
        self.generation = Generation(
            1,
            request,
            make(chosen),
            SharedNoise(request.sampling, PROMPT, Spread(), request.constraint),
            Bounds(CONTEXT, ENDS),
            offload=True,
            listen=self.listen,
        )
        self.backlog = 0
        self.take(events.Admitted(len(PROMPT) - 1 - 4 * eos))

    def listen(self, generation: Generation) -> Listener | None:
        """The listener of the request."""
        return None

    def take(self, step: object) -> None:
        before = self.generation.status
        self.now += 0.01 + self.rng.random() / 100
        outputs = self.generation.handle(step, self.now)
        assert (before, type(step)) in TABLE
        for output in outputs:
            assert not self.finished, "nothing follows the end"
            if not isinstance(output, events.FrameTaken):
                self.outputs.append(type(output))
            if isinstance(output, events.Chosen):
                self.emitted += output.event.tokens if output.event else ()
            elif isinstance(output, events.Finished):
                self.finished.append(output)
            elif isinstance(output, events.Send) and isinstance(output.body, Open):
                self.first = 1

    @property
    def status(self) -> Status:
        return self.generation.status

    def right(self, tokens: Sequence[int]) -> int:
        return chosen_after(tokens, self.constrained)

    @precondition(lambda self: self.status is Status.QUEUED)
    @rule(share=st.floats(0, 1))
    def admitted(self, share: float) -> None:
        self.take(events.Admitted(int(share * (len(self.generation.reading) - 1))))

    @precondition(lambda self: self.status is Status.PREFILL)
    @rule(chunk=st.integers(1, 9))
    def prefilled(self, chunk: int) -> None:
        left = len(self.generation.reading) - 1 - self.generation.prefilled
        self.take(events.Read(min(chunk, left)))

    @precondition(lambda self: self.generation.wants_worker)
    @rule(worker=st.sampled_from("vw"))
    def assigned(self, worker: str) -> None:
        self.take(events.WorkerChanged(worker, "assigned"))

    @precondition(lambda self: self.status is not Status.QUEUED)
    @rule(
        worker=st.sampled_from("vw"),
        epoch=st.integers(1, 3),
        right=st.booleans(),
        skip=st.integers(0, 12),
        old=st.integers(0, 9),
    )
    def frame(self, worker: str, epoch: int, right: bool, skip: int, old: int) -> None:
        """Two tokens; now and then of numbers or for a prefix that are none."""
        given = self.generation.assignment
        prefix = self.generation.tree.prefix
        first = self.first + (5 if skip == 12 else 0)
        self.first += 2 * (given is not None and (given.worker, given.epoch) == (worker, epoch))
        one = self.right(prefix.tokens)
        tokens = [token if right else (token + 1) % VOCAB for token in (one, self.right([*prefix.tokens, one]))]
        digest = bytes(32) if old == 9 else prefix.digest
        frame = Tree(1, epoch, len(prefix), digest, first, [0, first], tokens, [100, 100], [300, 300])
        self.take(events.FrameArrived(worker, frame))

    @rule(declines=st.booleans(), worker=st.sampled_from("vw"))
    def worker_leaves(self, declines: bool, worker: str) -> None:
        self.take(events.WorkerChanged(worker, "declined") if declines else events.WorkerChanged(worker, "gone"))

    @precondition(lambda self: self.status is Status.DECODE)
    @rule(linked=st.booleans(), local=st.booleans(), times=st.integers(1, 4))
    def decides(self, linked: bool, local: bool, times: int) -> None:
        for _ in range(times):
            if self.status is Status.DECODE:
                self.decide(linked, local)

    def decide(self, linked: bool, local: bool) -> None:
        generation = self.generation
        rng = self.rng
        link = LinkView(0.02 + rng.random() / 100, 0.03, 0.005, True) if linked and generation.assignment else None
        local = local or self.backlog > 0
        costs = Costs(self.curve, 0.005, 0.001 * self.backlog, 0.002, 4) if local else Costs(self.curve)
        action = generation.decide(link, costs, self.now)
        match action:
            case Verify(nodes):
                flat = generation.flatten(generation.select(nodes))
                self.curve.sample(len(flat), 0.02 + rng.random() / 100)
                self.backlog += 1
                self.take(events.Verified(flat, Rows(HASH, generation.tree.prefix.tokens, flat)))
            case Draft(leaves):
                self.backlog = 0
                self.take(
                    events.Drafted(leaves[:4], [self.propose(leaf.path(generation.tree.root)) for leaf in leaves[:4]])
                )
            case Wait(until):
                self.now = max(self.now, until)
            case CatchUp():
                self.backlog //= 2
                generation.note(events.Spent("draft", 0.001, 1), self.now)

    def propose(self, path: Sequence[int]) -> Proposal:
        best = self.right([*self.generation.tree.prefix.tokens, *path])
        tokens = [best, (best + 3) % VOCAB][:: 1 if self.rng.random() < 0.7 else -1]
        return Proposal(tokens, [0.1 + self.rng.random(), 2.0], 0.5)

    @precondition(lambda self: self.status is not Status.FINISHED)
    @rule(alone=st.booleans(), often=RARELY)
    def pass_fails(self, alone: bool, often: bool) -> None:
        if often:
            self.take(events.Failed("own-pass" if alone else "pass", "x"))

    @precondition(lambda self: self.status in (Status.PREFILL, Status.DECODE))
    @rule(often=RARELY)
    def preempted(self, often: bool) -> None:
        if often:
            self.take(events.Preempted())

    @rule(often=RARELY)
    def speculation_fails(self, often: bool) -> None:
        if often:
            self.take(events.Failed("speculation", "x"))

    @rule(often=RARELY)
    def cancelled(self, often: bool) -> None:
        if often:
            self.take(events.Ended("left"))

    @precondition(lambda self: self.status is not Status.FINISHED)
    @rule(often=RARELY, kind=st.sampled_from([events.Ended("stopped"), events.Ended("error", "x")]))
    def ends(self, often: bool, kind: object) -> None:
        if often:
            self.take(kind)

    @invariant()
    def text_is_plain_decodings(self) -> None:
        tokens = self.generation.tree.prefix.tokens
        assert tokens[len(PROMPT) :][: len(self.emitted)] == self.emitted
        assert all(self.right(tokens[:i]) == tokens[i] for i in range(len(PROMPT), len(tokens)))

    @invariant()
    def its_end_is_reported_once(self) -> None:
        assert len(self.finished) == (self.status is Status.FINISHED)
        if self.finished and self.finished[0].finish == "length":
            assert len(self.emitted) == COUNT


def walk_long(walk: Walk, seed: int) -> None:
    """Walks at random, because Hypothesis prefers what is short: most of these see a whole completion, half a
    constraint.
    """
    rng = random.Random(seed)
    walk.begin(NAMES[seed % len(NAMES)], seed >= len(NAMES), seed % 2 == 0)
    for _ in range(60):
        if walk.status is Status.PREFILL:
            walk.prefilled(3)
        if walk.generation.wants_worker and rng.random() < 0.5:
            walk.assigned(rng.choice("vw"))
        given = walk.generation.assignment
        if given is not None:
            walk.frame(given.worker, given.epoch, rng.random() < 0.6, rng.randrange(13) * (seed % 3), rng.randrange(10))
        if walk.status is Status.DECODE:
            walk.decide(rng.random() < 0.8, rng.random() < 0.8)
        if walk.status is Status.DECODE and rng.random() < 0.03:
            walk.take(events.Preempted())
            walk.admitted(rng.random())
        if rng.random() < 0.03:
            walk.worker_leaves(rng.random() < 0.5, "v")
        walk.text_is_plain_decodings()
        walk.its_end_is_reported_once()

    walk.teardown()
