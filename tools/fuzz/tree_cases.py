"""Trees that pass the shape checks, under every policy: nothing raises, rounds end, the answer is plain decoding's.

One walk is one answer with a random policy, random parameters, a random link and a worker that sends anything. A case
is one round of it: frames, decisions until the policy verifies, one verified tree, one commit.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np

from cloud_gateway.core.policies.estimators import MAX_S, RttEstimator, StepClock, StepCurve
from cloud_gateway.core.policies.policy import CatchUp, Costs, Draft, LinkView, Outcome, Policy, Verify, Wait
from cloud_gateway.core.policies.registry import make
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests.rounds import Rounds
from cloud_gateway.core.requests.router import LinkedWorker
from cloud_gateway.core.verify.accept import flatten, walk
from cloud_gateway.core.verify.candidates import LOCAL, CandidateTree
from cloud_gateway.core.verify.verification import SHARED_NOISE, CompletionStart
from edgespec.core.drafting.ranking import Spread
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import Sampling, check_tree_shape, max_entropy, step_curve
from tools.doubles.model import Rows
from tools.fuzz.frames import RandomWorker, step_times
from tools.fuzz.model import ALONE, CHOICES, METHODS, table

PACKAGES = ("cloud_gateway.", "edgespec.")
MAX_OBJECTS = 100_000


def check_finite(root: object) -> None:
    """Raises AssertionError naming where a number is none, which would spoil every later decision.

    Infinities may be meant (a time that never comes).
    """
    waiting: list[tuple[str, object]] = [(type(root).__name__, root)]
    known: set[int] = set()
    while waiting and len(known) < MAX_OBJECTS:
        name, one = waiting.pop()
        if isinstance(one, float):
            assert not math.isnan(one), f"{name} is not a number"
        elif isinstance(one, np.ndarray):
            assert not np.isnan(one).any(), f"{name} holds what is not a number"
        elif id(one) not in known:
            known.add(id(one))
            waiting += [(f"{name}.{label}", part) for label, part in _parts(one)]


def _parts(one: object) -> Iterable[tuple[object, object]]:
    if isinstance(one, Mapping):
        return one.items()
    if isinstance(one, list | tuple) or type(one).__name__ == "deque":
        return enumerate(one)  # type: ignore[arg-type]
    if not type(one).__module__.startswith(PACKAGES):
        return ()

    slots = [slot for kind in type(one).__mro__ for slot in getattr(kind, "__slots__", ())]
    return [(name, getattr(one, name)) for name in (*slots, *getattr(one, "__dict__", ())) if hasattr(one, name)]


ROUNDS = 12
"""Of one walk, and so its cases."""
MAX_DECISIONS = 200
"""Until a policy verifies; `Rounds.bound` bounds passes and time, so that fewer are needed."""
VOCABULARIES = (2, 17, 64)
SAMPLINGS = (
    Sampling(),
    Sampling(),
    Sampling(repetition_penalty=1.3),
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=0.7, top_p=0.9, repetition_penalty=0.01, seed=2**63 - 1),
)
WORKER = "w"


def case(seed: str) -> Counter[str]:
    """One walk: its rounds by policy. Raises AssertionError, or whatever leaves the gateway's code."""
    rng = random.Random(seed)
    walk_ = Walk(rng)
    for _ in range(ROUNDS):
        walk_.round()
    check_finite(walk_.controller)
    check_finite(walk_.spread)
    return Counter({walk_.controller.name: ROUNDS}) + walk_.seen


class Walk:
    """One answer under one policy."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.seen = Counter[str]()
        self.vocab_size = rng.choice(VOCABULARIES)
        self.model = table(self.vocab_size, rng.randrange(2), rng.random() < 0.3)
        self.draft = table(self.vocab_size, rng.choice((0, 1, 100)), rng.random() < 0.3)
        self.prompt = [rng.randrange(self.vocab_size) for _ in range(rng.randint(1, 6))]
        self.tree = CandidateTree(self.prompt, max_nodes=rng.choice((1, 8, 64, 1024)))
        settings = _settings(rng)
        self.controller: Policy = make(settings, policies=CHOICES.policies)
        self.rounds = Rounds(settings.verify_nodes)
        self.now, self.starts, self.epoch, self.spread = rng.choice((0.0, 1e9)), [len(self.prompt)], 1, Spread()
        self._plan()
        self._measure()

    def _plan(self) -> None:
        """How tokens are chosen, and what plain decoding says."""
        rng = self.rng
        sampling = rng.choice(SAMPLINGS)
        method = SHARED_NOISE
        if rng.random() < 0.2:
            method = METHODS[rng.choice(sorted(METHODS))]
            sampling = Sampling(temperature=1.0, seed=3)
        fresh = partial(np.random.default_rng, rng.randrange(2**32))
        begin = partial(method.begin, CompletionStart(sampling, self.prompt, None, self.spread, fresh))
        self.chosen = begin()
        self.answer = list(self.prompt) if method.seeded else []
        if method.seeded:
            self._decode_plainly(begin(), ROUNDS + rng.randrange(60))
        self.worker = RandomWorker(rng, self.vocab_size, self.answer)

    def _decode_plainly(self, plain: object, count: int) -> None:
        """Fills `answer` with prompt and tokens of plain decoding: the slow twin."""
        while len(self.answer) < len(self.prompt) + count:
            self.answer.append(self.next_token(plain))

    def next_token(self, plain: object) -> int:
        """One token of plain decoding after `answer`."""
        token = int(plain.at(ALONE, Rows(self.model, self.answer, ALONE))(0))  # type: ignore[attr-defined]
        plain.committed([token])  # type: ignore[attr-defined]
        return token

    def _measure(self) -> None:
        """The gateway's estimates of its passes and of the link, after measurements of any kind."""
        rng = self.rng

        def some() -> float:
            return rng.choice((0.0, 1e-9, 10 ** rng.uniform(-4, 1), 1e6, float("nan")))

        curve = StepCurve({1: 0.03})
        rtt = RttEstimator()
        clock = StepClock(0.01)
        now = 0.0
        for _ in range(rng.randrange(8)):
            curve.sample(rng.choice((1, 2, 3, 5, 9, 17, 33, 65)), some())
            rtt.sample(some())
            now += max(some(), 0.0) if rng.random() < 0.5 else 0.01
            clock.frame(now if now == now else 0.0, rng.choice((1, 1, 3, 64)))
        local = rng.choice((None, None, 0.0, 1e-6, 10 ** rng.uniform(-4, 1)))
        self.backlog = rng.choice((0.0, 0.0, 0.01, 10.0))
        self.costs = lambda: Costs(curve, local, self.backlog, rng.choice((0.0, 0.004)), rng.choice((1, 4)))
        points = step_curve(step_times(rng)) if rng.random() < 0.5 else ()
        worker = LinkedWorker("w", 0.0, 0.0, 0.01, paused=False, draft_points=points)
        assert 0 <= worker.pass_s(rng.randint(1, 64)) < float("inf"), "a reported curve gives no time of a pass"
        self.link = LinkView(rtt.srtt_s or 0.0, rtt.high_s, clock.step_s, rng.random() < 0.8)
        self.seen["reported curves"] += bool(points)

    def round(self) -> None:
        """Frames, decisions, one verified tree, one commit."""
        rng = self.rng
        for _ in range(rng.choice((0, 1, 1, 2))):
            self._frame()
        for _ in range(MAX_DECISIONS):
            link = self.link if rng.random() < 0.95 else None
            action = self.controller.decide(self.tree, link, self.costs(), self.now)
            action = self.rounds.bound(action, self.tree, self.now)
            match action:
                case Verify(nodes):
                    self._verify(list(nodes))
                    return
                case Wait(until):
                    assert until == until, "waits until a time that is not a number"
                    self.now = max(self.now, min(until, self.now + MAX_S)) + rng.choice((0.0, 1e-3))
                    if rng.random() < 0.5:
                        self._frame()
                case CatchUp():
                    self.backlog = max(self.backlog - 0.01, 0.0)
                case Draft():
                    self._draft(action)
                    self.now += rng.choice((0.0, 0.01))
        raise AssertionError(f"{self.controller.name} does not verify")

    def _frame(self) -> None:
        frame = self.worker.frame(self.tree.prefix, self.starts)
        check_tree_shape(frame, self.vocab_size)
        try:
            merged = self.tree.merge(self.epoch, frame, WORKER)
        except RemoteProtocolError as error:  # costs the worker its link, and the answer its candidates
            self.seen[error.reason] += 1
            self.tree.forget(self.epoch)
            self.tree.discard(WORKER)
            self.epoch += 1
            self.worker.next_id = 1
            return
        self.controller.received(merged, self.now)

    def _draft(self, action: Draft) -> None:
        """One pass of the gateway's own draft."""
        prefix = self.tree.prefix.tokens
        root = self.tree.root
        for leaf in action.leaves[:4]:  # as many as this draft takes in one pass
            path = leaf.path(root)
            proposal = self.chosen.rank(self.draft.logits([*prefix, *path]), path, action.width)
            for token, cost in zip(proposal.tokens, proposal.costs, strict=True):
                self.tree.add_local(leaf, token, cost, proposal.entropy, LOCAL)

    def _verify(self, nodes: list[object]) -> None:
        before = len(self.tree.prefix)
        flat = flatten(self.tree.root, nodes)  # type: ignore[arg-type]
        rows = Rows(self.model, self.tree.prefix.tokens, flat)
        taken = walk(flat, self.chosen.at(flat, rows), limit=self.rng.choice((1, 3, 100)))
        assert all(0 <= token < self.vocab_size for token in taken.tokens), "a token outside the vocabulary"
        expected = self.answer[before : before + len(taken.tokens)]
        assert taken.tokens[: len(expected)] == expected, "the answer is not plain decoding's"
        self.seen["candidates accepted"] += len(taken.rows) - 1
        self.tree.advance(taken.tokens)
        self.chosen.committed(taken.tokens)
        self.starts = [*self.starts[-3:], len(self.tree.prefix)]
        self.now += 10 ** self.rng.uniform(-4, 0)
        entropy = self.rng.choice((0.0, 1.0, max_entropy(self.vocab_size) / 1000))
        outcome = Outcome(max(flat.depths), len(taken.tokens), taken.at_leaf, entropy, self.tree.root.position)
        self.rounds.ended(outcome, self.now)
        self.controller.verified(outcome, self.now)


def _settings(rng: random.Random) -> PolicySettings:
    """What a client or an operator may choose."""
    return PolicySettings(
        name=rng.choice(list(CHOICES.policies)),
        k=rng.choice((1, 2, 3, 4, 16)),
        phi=rng.choice((0.0, 5e-324, 0.5, 100.0)),
        verify_nodes=rng.choice((1, 2, 16, 64)),
        depth=rng.choice((16, 16, 1, 3)),
        prefer=rng.choice(("latency", "balanced", "offload")),
    )
