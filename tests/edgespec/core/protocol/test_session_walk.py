"""Random walks through both session machines, predicted by their tables."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol import messages as m
from edgespec.core.protocol import signing
from edgespec.core.protocol.session import GATEWAY_RECEIVES, WORKER_RECEIVES, State
from edgespec.core.protocol.signing import seal
from tests.support.sessions import (
    COMMIT,
    GATEWAY_BODIES,
    GATEWAY_KEY,
    HASH,
    SPKI,
    TOKENIZER,
    TREE,
    WORKER_BODIES,
    WORKER_KEY,
    deliver,
    gateway,
    reason_of,
    worker,
)


class Walk(RuleBasedStateMachine):
    """Feeds one machine valid and invalid messages of a peer with the right keys; a model predicts the state."""

    receives = GATEWAY_RECEIVES
    start = State.HELLO
    bodies: ClassVar[list[Any]] = [*WORKER_BODIES, COMMIT, m.Welcome("gw", 4)]
    key, kind = WORKER_KEY, signing.WORKER_FRAME

    @initialize(wild=st.booleans())
    def begin(self, wild: bool) -> None:
        """Only a wild walk has frames that no correct peer sends; they end it soon."""
        self.now, self.seq, self.wild = 0.0, 0, wild
        self.peer, self.machine = worker(), gateway()
        self.expected = self.start

    def feed(self, data: bytes, *messages: Any) -> None:
        following = self.receives.get((self.expected, type(messages[0])))
        alone = len(messages) == 1 or all(type(one) in m.TOGETHER for one in messages)
        if not alone or any((self.expected, type(one)) not in self.receives for one in messages):
            following = None
        if following is None:
            assert reason_of(self.machine, data, self.now).reason == "unexpected"
            self.expected = State.CLOSED
        else:
            self.machine.receive(data, self.now)
            self.expected = State.OPEN if following is State.WELCOME and self.start is State.HELLO else following

    @precondition(lambda self: self.expected in (State.HELLO, State.CHALLENGE, State.PROOF))
    @rule(which=st.sampled_from(["right", "hello", "challenge", "proof"]))
    def handshake(self, which: str) -> None:
        right = {State.HELLO: "hello", State.CHALLENGE: "challenge", State.PROOF: "proof"}[self.expected]
        if which in ("right", right):
            (data,) = self.peer.outgoing()
            message = m.decode_handshake(data)
            self.feed(data, message)
            for reply in self.machine.outgoing():
                self.peer.receive(reply, self.now)
        else:
            example: Any = {
                "hello": m.decode_handshake(worker().outgoing()[0]),
                "challenge": m.Challenge(GATEWAY_KEY.public, HASH, SPKI, TOKENIZER, bytes(64)),
                "proof": m.Proof(bytes(64)),
            }[which]
            self.feed(m.encode(example), example)

    @precondition(lambda self: self.expected in (State.WELCOME, State.OPEN))
    @rule(data=st.data())
    def frame(self, data: st.DataObject) -> None:
        bodies = data.draw(st.lists(st.sampled_from(self.bodies), min_size=1, max_size=3))
        self.seq += 1
        payload = m.encode(m.Frame(self.machine.session, self.seq, bodies))
        self.feed(seal(self.key, self.kind, payload), *bodies)
        self.machine.outgoing()

    @precondition(lambda self: self.wild and self.expected in (State.WELCOME, State.OPEN))
    @rule(how=st.sampled_from(["seq", "session", "signature", "kind", "garbage", "trailing"]))
    def bad_frame(self, how: str) -> None:
        session, seq = self.machine.session, self.seq + 1
        payload = m.encode(m.Frame(session if how != "session" else HASH[:16], seq + (how == "seq"), [m.Ping(1)]))
        payload = b"\xc1" * 30 if how == "garbage" else payload + (b"\0" if how == "trailing" else b"")
        data = seal(self.key, self.kind if how != "kind" else signing.WORKER_PROOF, payload)
        data = bytes([data[0] ^ 1]) + data[1:] if how == "signature" else data
        names = {"seq": "sequence", "signature": "bad-signature", "kind": "bad-signature"}
        names |= {"garbage": "malformed", "trailing": "malformed"}
        assert reason_of(self.machine, data, self.now).reason == names.get(how, how)
        self.expected = State.CLOSED

    @precondition(lambda self: self.wild)
    @rule(junk=st.binary(max_size=300))
    def junk(self, junk: bytes) -> None:
        reason_of(self.machine, junk, self.now)
        self.expected = State.CLOSED

    @rule(wait_s=st.sampled_from([0.001, 0.3, 1.0, 4.0]))
    def wait(self, wait_s: float) -> None:
        self.now += wait_s
        due = self.machine.wake_at
        try:
            self.machine.tick(self.now)
        except RemoteProtocolError as error:
            assert error.reason in ("handshake-timeout", "silent", "slow")
            assert self.now >= due or error.reason != "handshake-timeout"  # the others are checked in every tick
            self.expected = State.CLOSED
        self.machine.outgoing() if self.expected is State.OPEN else None

    @invariant()
    def the_model_agrees(self) -> None:
        if hasattr(self, "machine"):
            assert self.machine.state is self.expected
            assert (self.machine.wake_at == float("inf")) == (self.expected is State.CLOSED)


class WorkerWalk(Walk):
    receives = WORKER_RECEIVES
    start = State.CHALLENGE
    bodies: ClassVar[list[Any]] = [*GATEWAY_BODIES, TREE, m.Welcome("gw", 4)]
    key, kind = GATEWAY_KEY, signing.GATEWAY_FRAME

    @initialize(wild=st.booleans())
    def begin(self, wild: bool) -> None:
        self.now, self.seq, self.wild = 0.0, 0, wild
        self.peer, self.machine = gateway(), worker()
        deliver(self.machine, self.peer)
        self.expected = self.start


WALKS = settings(max_examples=60, stateful_step_count=30)
Walk.TestCase.settings = WorkerWalk.TestCase.settings = WALKS
claim = pytest.mark.claim("gateway-and-worker-walk")
any_order = pytest.mark.claim("each-machine-takes-events-in-any-order")
TestGatewayWalk = any_order(claim(Walk.TestCase))
TestWorkerWalk = any_order(claim(WorkerWalk.TestCase))
