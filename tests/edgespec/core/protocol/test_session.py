"""The open link: numbering, direction, limits, the end, every deadline; and random walks, predicted by the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edgespec.core.errors import LocalProtocolError, RemoteProtocolError
from edgespec.core.protocol import messages as m
from edgespec.core.protocol import ranges, signing
from edgespec.core.protocol.gateway_session import GatewaySession
from edgespec.core.protocol.session import (
    GATEWAY_RECEIVES,
    WORKER_RECEIVES,
    RttSample,
    SessionState,
    WorkerSession,
    together,
)
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
    linked,
    reason_of,
    worker,
)

LARGE = m.Tree(1, 1, 3, HASH, 1, *[[2**31 - 1] * 900 for _ in range(4)])


def sealed(payload: bytes) -> bytes:
    return seal(WORKER_KEY, signing.WORKER_FRAME, payload)


def bodies(*messages: Any) -> Callable[[WorkerSession, GatewaySession], bytes]:
    """A rightly signed first frame of a worker with these messages."""
    return lambda w, g: sealed(m.encode([w.session, 1, list(messages)]))


def former(w: WorkerSession, g: GatewaySession) -> bytes:
    """A frame of the same worker's session before this one."""
    w2 = worker()
    g2 = gateway(nonce=b"3" * 32)
    for _ in range(2):
        deliver(w2, g2)
        deliver(g2, w2)
    return w2.send(TREE)


def repeated(w: WorkerSession, g: GatewaySession) -> bytes:
    g.receive(frame := w.send(TREE), 0.0)
    return frame


def second_pong(w: WorkerSession, g: GatewaySession) -> bytes:
    g.tick(0.02)
    deliver(g, w)
    deliver(w, g)
    return w.send(m.Pong(20000))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        pytest.param(repeated, "sequence", marks=pytest.mark.claim("a-replayed-frame")),
        pytest.param(
            lambda w, g: w.send(TREE) and w.send(TREE), "sequence", marks=pytest.mark.claim("reordered-frames")
        ),
        pytest.param(
            former,
            "session",
            marks=pytest.mark.claim(
                "a-frame-of-another-session", "a-frame-of-an-older-session-of-the-same-worker-is-refused"
            ),
        ),
        pytest.param(bodies(COMMIT), "unexpected", marks=pytest.mark.claim("a-message-of-the-gateways-direction")),
        *((bodies(TREE, other, TREE), "unexpected") for other in (m.Ping(1), m.Pause("x"), m.StepTimes([1], [1]))),
        *((bodies(TREE, other), "unexpected") for other in (m.Bye("x"), COMMIT)),
        *((bodies(*[["decline", 1, 1, "x"]] * count), "malformed") for count in (0, m.MAX_PARTS + 1)),
        *(
            pytest.param(lambda w, g, data=data: sealed(data), "malformed", marks=pytest.mark.claim("bad-msgpack"))
            for data in (b"", b"\xc1", b"\x91" * 5000, b"\xa2\xff\xfe", b"\xdd\xff\xff\xff\xff")
        ),
        pytest.param(bodies(LARGE), "oversize", marks=pytest.mark.claim("a-websocket-message-beyond-64-kib")),
        pytest.param(lambda w, g: w.send(m.Pong(123)), "pong", marks=pytest.mark.claim("a-pong-that-answers-no-ping")),
        (second_pong, "pong"),
        pytest.param(
            lambda w, g: g.send(m.Ping(1)),
            "bad-signature",
            marks=pytest.mark.claim("the-gateways-own-frame-sent-back"),
        ),
    ],
)
def test_a_frame_that_no_worker_sends_ends_the_link(bad: Any, reason: str) -> None:
    w, g = linked()
    assert reason_of(g, bad(w, g)).reason == reason


@pytest.mark.parametrize("wrong", [[COMMIT], [LARGE], [TREE, m.Ping(1)], [TREE, COMMIT]])
def test_what_may_not_be_sent_is_a_fault_of_ours_and_takes_no_number(wrong: list[Any]) -> None:
    w, g = linked()
    with pytest.raises(LocalProtocolError):
        w.send(*wrong)
    assert g.receive(w.send(TREE), 0.0) == [TREE]


def test_messages_of_several_requests_share_one_frame_in_order() -> None:
    w, g = linked()
    trees = [m.Tree(number, 1, 3, HASH, 1, [0], [5], [1], [1]) for number in range(8)]
    frame = w.send(*trees, m.Decline(9, 1, "full"))
    assert len(frame) == 1024 < 8 * len(w.send(TREE))
    assert g.receive(frame, 0.0) == [*trees, m.Decline(9, 1, "full")]
    assert reason_of(g, frame).reason == "sequence"


@given(st.lists(st.integers(1, m.MAX_TOKENS_PER_FRAME), min_size=1, max_size=100))
def test_what_does_not_fit_into_one_frame_goes_into_the_next(lengths: list[int]) -> None:
    _, g = linked()
    commits = [m.Commit(1, 1, number, [2**31 - 1] * length, HASH) for number, length in enumerate(lengths)]
    groups = list(together(commits, g.max_sent))
    assert [commit for group in groups for commit in group] == commits
    assert all(1 <= len(group) <= m.MAX_PARTS for group in groups)
    for group in groups:
        g.send(*group)  # raises for a frame that is too large


def test_nothing_follows_a_bye() -> None:
    w, g = linked()
    assert g.receive(w.send(m.Bye("stopping")), 0.0) == [m.Bye("stopping")]
    assert g.state is w.state is SessionState.CLOSED
    with pytest.raises(LocalProtocolError):
        w.send(TREE)
    assert reason_of(g, b"").reason == "unexpected"


# --- time --------------------------------------------------------------------------------------------------------


def test_the_gateway_pings_at_once_and_every_second_and_measures() -> None:
    w, g = linked()
    now = 0.02
    for _ in range(3):
        assert g.wake_at == pytest.approx(now)
        g.tick(now)
        assert deliver(g, w, now + 0.01) == []
        (sample,) = deliver(w, g, now + 0.03)
        assert sample.rtt_s == pytest.approx(0.03)
        now += 1.0


@pytest.mark.parametrize("session", [worker(now=100.0), gateway(now=100.0)])
def test_an_unfinished_handshake_ends_after_ten_seconds(session: Any) -> None:
    assert session.wake_at == 110.0
    session.tick(109.9)
    assert given_up(session, 110.0) == ("handshake-timeout", 4408)
    assert session.wake_at == float("inf")


def given_up(session: Any, now: float) -> tuple[str, int]:
    with pytest.raises(RemoteProtocolError) as caught:
        session.tick(now)
    return caught.value.reason, caught.value.close_code


def test_a_silent_peer_is_given_up_after_ten_seconds() -> None:
    w, g = linked()
    for now in range(1, 10):
        g.tick(now)
        w.tick(now)
    assert given_up(w, 10.03) == given_up(g, 11.1) == ("silent", 4408)


def test_a_peer_that_sends_but_does_not_read_is_given_up_after_five() -> None:
    w, g = linked()
    g.tick(0.02)
    for now in range(1, 5):
        g.receive(w.send(TREE), now)
        g.tick(now)
    g.receive(w.send(TREE), 5.0)
    assert given_up(g, 5.1) == ("slow", 1013)


def test_the_worker_measures_the_round_trip_too() -> None:
    w, g = linked()
    assert w.wake_at <= 0.02 + w.timers.ping_every_s
    for number in range(1, 4):
        now = number * w.timers.ping_every_s + 0.02
        w.tick(now)
        assert deliver(w, g, now=now + 0.01) == []
        assert RttSample(0.03) in [RttSample(round(e.rtt_s, 6)) for e in deliver(g, w, now=now + 0.03)]


# --- what sizes reveal -------------------------------------------------------------------------------------------


@pytest.mark.claim("the-size-of-a-commit-does-not-tell-how-many-tokens-were-accepted")
def test_the_size_of_a_commit_does_not_tell_how_many_tokens_were_accepted() -> None:
    """One round commits at most 65 tokens: the deepest path and the target's own."""
    _, g = linked()
    g._sent = 2**32
    times = m.MAX_MICROS, m.MAX_MICROS, m.MAX_DEPTH
    counts = range(1, m.MAX_DEPTH + 2)
    numbers = [m.Commit(2**40, 2**32 - 1, 2**32 - 1, [ranges.MAX_ID] * count, HASH, *times) for count in counts]
    others = [m.Ping(2**50), m.Close(2**40, 9, "done")]
    assert {len(g.send(body)) for body in (*numbers, *others)} == {512}


@pytest.mark.claim("the-size-of-a-commit-does-not-tell-how-many-tokens-were-accepted")
def test_the_size_of_a_tree_shows_its_nodes_only_to_a_power_of_two() -> None:
    w, _ = linked()
    sizes = set()
    for count in range(1, m.MAX_NODES + 1):
        nodes = [1000] * count
        sizes.add(len(w.send(m.Tree(1, 1, 3, HASH, 1, nodes, nodes, nodes, nodes))))
    assert sizes <= {512, 1024, 2048}


class Walk(RuleBasedStateMachine):
    """Feeds one machine valid and invalid messages of a peer with the right keys; a model predicts the state."""

    receives = GATEWAY_RECEIVES
    start = SessionState.HELLO
    bodies: ClassVar[list[Any]] = [*WORKER_BODIES, COMMIT, m.Welcome("gw", 4)]
    key = WORKER_KEY
    kind = signing.WORKER_FRAME

    @initialize(wild=st.booleans())
    def begin(self, wild: bool) -> None:
        """Only a wild walk has frames that no correct peer sends; they end it soon."""
        self.now = 0.0
        self.seq = 0
        self.wild = wild
        self.peer: WorkerSession | GatewaySession = worker()
        self.machine: WorkerSession | GatewaySession = gateway()
        self.expected = self.start

    def feed(self, data: bytes, *messages: Any) -> None:
        following = self.receives.get((self.expected, type(messages[0])))
        alone = len(messages) == 1 or all(type(one) in m.TOGETHER for one in messages)
        if not alone or any((self.expected, type(one)) not in self.receives for one in messages):
            following = None
        if following is None:
            assert reason_of(self.machine, data, self.now).reason == "unexpected"
            self.expected = SessionState.CLOSED
        else:
            self.machine.receive(data, self.now)
            self.expected = following
            if following is SessionState.WELCOME and self.start is SessionState.HELLO:
                self.expected = SessionState.OPEN

    @precondition(lambda self: self.expected in (SessionState.HELLO, SessionState.CHALLENGE, SessionState.PROOF))
    @rule(which=st.sampled_from(["right", "hello", "challenge", "proof"]))
    def handshake(self, which: str) -> None:
        names = {SessionState.HELLO: "hello", SessionState.CHALLENGE: "challenge", SessionState.PROOF: "proof"}
        right = names[self.expected]
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

    @precondition(lambda self: self.expected in (SessionState.WELCOME, SessionState.OPEN))
    @rule(data=st.data())
    def frame(self, data: st.DataObject) -> None:
        bodies = data.draw(st.lists(st.sampled_from(self.bodies), min_size=1, max_size=3))
        self.seq += 1
        payload = m.encode(m.Frame(self.machine.session, self.seq, bodies))
        self.feed(seal(self.key, self.kind, payload), *bodies)
        self.machine.outgoing()

    @precondition(lambda self: self.wild and self.expected in (SessionState.WELCOME, SessionState.OPEN))
    @rule(how=st.sampled_from(["seq", "session", "signature", "kind", "garbage", "trailing"]))
    def bad_frame(self, how: str) -> None:
        session = self.machine.session
        seq = self.seq + 1
        payload = m.encode(m.Frame(session if how != "session" else HASH[:16], seq + (how == "seq"), [m.Ping(1)]))
        payload = b"\xc1" * 30 if how == "garbage" else payload + (b"\0" if how == "trailing" else b"")
        data = seal(self.key, self.kind if how != "kind" else signing.WORKER_PROOF, payload)
        data = bytes([data[0] ^ 1]) + data[1:] if how == "signature" else data
        names = {"seq": "sequence", "signature": "bad-signature", "kind": "bad-signature"}
        names |= {"garbage": "malformed", "trailing": "malformed"}
        assert reason_of(self.machine, data, self.now).reason == names.get(how, how)
        self.expected = SessionState.CLOSED

    @precondition(lambda self: self.wild)
    @rule(junk=st.binary(max_size=300))
    def junk(self, junk: bytes) -> None:
        reason_of(self.machine, junk, self.now)
        self.expected = SessionState.CLOSED

    @rule(wait_s=st.sampled_from([0.001, 0.3, 1.0, 4.0]))
    def wait(self, wait_s: float) -> None:
        self.now += wait_s
        due = self.machine.wake_at
        try:
            self.machine.tick(self.now)
        except RemoteProtocolError as error:
            assert error.reason in ("handshake-timeout", "silent", "slow")
            assert self.now >= due or error.reason != "handshake-timeout"  # the others are checked in every tick
            self.expected = SessionState.CLOSED
        self.machine.outgoing() if self.expected is SessionState.OPEN else None

    @invariant()
    def the_model_agrees(self) -> None:
        if hasattr(self, "machine"):
            assert self.machine.state is self.expected
            assert (self.machine.wake_at == float("inf")) == (self.expected is SessionState.CLOSED)


class WorkerWalk(Walk):
    receives = WORKER_RECEIVES
    start = SessionState.CHALLENGE
    bodies: ClassVar[list[Any]] = [*GATEWAY_BODIES, TREE, m.Welcome("gw", 4)]
    key = GATEWAY_KEY
    kind = signing.GATEWAY_FRAME

    @initialize(wild=st.booleans())
    def begin(self, wild: bool) -> None:
        self.now = 0.0
        self.seq = 0
        self.wild = wild
        self.peer = gateway()
        self.machine = worker()
        deliver(self.machine, self.peer)
        self.expected = self.start


WALKS = settings(max_examples=40, stateful_step_count=25)
Walk.TestCase.settings = WorkerWalk.TestCase.settings = WALKS
claim = pytest.mark.claim("gateway-and-worker-walk")
any_order = pytest.mark.claim("each-machine-takes-events-in-any-order")
TestGatewayWalk = any_order(claim(Walk.TestCase))
TestWorkerWalk = any_order(claim(WorkerWalk.TestCase))
