"""The authenticated link as two state machines without sockets or clock (docs/protocol.md).

    worker                                            gateway
      | Hello: who, nonce, what it drafts with          |
      | ----------------------------------------------> |
      |     Challenge: who, nonce, TLS key; signed      |   or Refuse, signed
      | <---------------------------------------------- |
      | Proof: signed                                   |
      | ----------------------------------------------> |
      |               Frame(session, 1, [Welcome]), ... |   or Frame(session, 1, [Bye]), if the key is not paired
      | <---------------------------------------------- |
      | Frame(session, 1, [Tree, Tree]), ...            |
      | ----------------------------------------------> |

`receive` takes bytes and returns messages and events; `send` numbers and signs. Frames that the machine makes by itself
are in `outgoing` and are written first. `tick` is to be called at `wake_at`. A RemoteProtocolError ends the session.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from edgespec.core.errors import LocalProtocolError, RemoteProtocolError
from edgespec.core.protocol import messages as m
from edgespec.core.protocol import signing
from edgespec.core.protocol.handshake import (
    MAX_HANDSHAKE_BYTES,
    NO_TOKENIZER,
    CloseCode,
    Pin,
    WorkerIdentity,
    proof,
    session_id,
    transcript,
    verify_refusal,
)
from edgespec.core.protocol.messages import (
    PROTOCOL,
    AnyBody,
    Challenge,
    Frame,
    Hello,
    Message,
    Ping,
    Pong,
    Proof,
    Refuse,
    RotatedProof,
)
from edgespec.core.protocol.signing import SigningKey


class SessionState(enum.StrEnum):
    """Named after the message that is expected."""

    HELLO = "hello"
    CHALLENGE = "challenge"
    PROOF = "proof"
    WELCOME = "welcome"
    OPEN = "open"
    CLOSED = "closed"


Table = Mapping[tuple[SessionState, type[Message]], SessionState]


def _while_open(*types: type[Message]) -> dict[tuple[SessionState, type[Message]], SessionState]:
    return {(SessionState.OPEN, kind): SessionState.OPEN for kind in types}


FRAMES_TO_GATEWAY: Table = {
    **_while_open(m.Fetch, m.Tree, m.StepTimes, m.Pause, m.Resume, m.Decline, Ping, Pong),
    (SessionState.OPEN, m.Bye): SessionState.CLOSED,
}
FRAMES_TO_WORKER: Table = {
    (SessionState.WELCOME, m.Welcome): SessionState.OPEN,
    (SessionState.WELCOME, m.Bye): SessionState.CLOSED,
    **_while_open(m.Books, m.WorkerTimes, m.Piece, m.Extra, m.Open, m.Commit, m.Share, m.Close, Ping, Pong),
    (SessionState.OPEN, m.Bye): SessionState.CLOSED,
}
WORKER_RECEIVES: Table = {
    (SessionState.CHALLENGE, Challenge): SessionState.WELCOME,
    (SessionState.CHALLENGE, Refuse): SessionState.CLOSED,
    **FRAMES_TO_WORKER,
}
GATEWAY_RECEIVES: Table = {
    (SessionState.HELLO, Hello): SessionState.PROOF,
    (SessionState.PROOF, Proof): SessionState.WELCOME,
    (SessionState.PROOF, RotatedProof): SessionState.WELCOME,
    **FRAMES_TO_GATEWAY,
}
A_MESSAGE = f"a message of {PROTOCOL}"
FRAME_BYTES = 31
"""Of a frame's payload that are no message: session 18, number at most 9, heads of both arrays 4."""
_HANDSHAKE_STATES = frozenset({SessionState.HELLO, SessionState.CHALLENGE, SessionState.PROOF})


@dataclass(frozen=True, slots=True)
class Timers:
    """Seconds. Tests shorten them; docs/protocol.md states the defaults."""

    handshake_s: float = 10.0
    ping_every_s: float = 1.0
    unread_s: float = 5.0
    """A peer that sends but does not answer a ping for this long is not reading."""
    silent_s: float = 10.0


DEFAULT_TIMERS = Timers()


@dataclass(frozen=True, slots=True)
class Linked:
    """Both sides are authenticated. `branching`: children of a node that the gateway takes; 0 at the gateway itself."""

    branching: int = 0


@dataclass(frozen=True, slots=True)
class RttSample:
    """One measured round trip."""

    rtt_s: float


Event = Message | Linked | RttSample


class Session:
    """Common part of both ends: tables, numbering, ping and pong, deadlines. Times are monotonic seconds."""

    receives: ClassVar[Table]
    sends: ClassVar[Table]
    send_kind: ClassVar[str]
    receive_kind: ClassVar[str]
    max_sent: ClassVar[int]
    max_received: ClassVar[int]
    """Bytes of payload."""

    def __init__(self, key: SigningKey, state: SessionState, now: float, timers: Timers) -> None:
        self.state = state
        self.timers = timers
        self.session = b""
        """Session id, 16 bytes; empty until both nonces are known."""
        self.peer_key = b""
        """32 bytes; proven once the state is OPEN."""
        self._key = key
        self._sent = self._received = 0
        self._outgoing: list[bytes] = []
        self._pings: deque[tuple[int, float]] = deque()
        self.received_at = now
        self._deadline = now + timers.handshake_s
        self._ping_at = now

    def outgoing(self) -> list[bytes]:
        """What must be written before anything that `send` returns later; empties the list."""
        waiting = self._outgoing
        self._outgoing = []
        return waiting

    def send(self, *bodies: AnyBody) -> bytes:
        """Numbers, signs and pads messages, in one frame. Raises LocalProtocolError where state or size forbid it."""
        following = self._following(self.sends, bodies)
        if following is None:
            raise LocalProtocolError(f"{_names(bodies)} cannot be sent in state {self.state}.")

        payload = m.encode(Frame(self.session, self._sent + 1, list(bodies)))
        if len(payload) > self.max_sent:
            raise LocalProtocolError(f"{_names(bodies)} has {len(payload)} bytes, more than {self.max_sent}.")

        self._sent += 1
        self.state = following
        return signing.seal(self._key, self.send_kind, payload)

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Verifies, decodes and handles one WebSocket message. Raises RemoteProtocolError, which ends the session."""
        try:
            messages = self._read(data)
            following = self._following(self.receives, messages)
            if following is None:
                raise RemoteProtocolError("unexpected", f"{_names(messages)} is not allowed in state {self.state}")
            self.state = following
            self.received_at = now
            if type(messages[0]) in m.TOGETHER:  # those that may be together are not the session's own
                return [*messages]
            return self._handle(messages[0], data, now)
        except RemoteProtocolError:
            self.state = SessionState.CLOSED
            raise

    @property
    def wake_at(self) -> float:
        """When `tick` is due, for a ping or a deadline; infinity once the session is over."""
        if self.state is SessionState.CLOSED:
            return float("inf")
        if self.state is SessionState.OPEN:
            return min(self.received_at + self.timers.silent_s, self._ping_at)
        return self._deadline

    def tick(self, now: float) -> None:
        """Checks the deadlines, and sends a ping when it is due.

        Raises RemoteProtocolError (`handshake-timeout`, `silent`, `slow`).
        """
        try:
            self._check_deadlines(now)
        except RemoteProtocolError:
            self.state = SessionState.CLOSED
            raise
        if self.state is SessionState.OPEN and now >= self._ping_at:
            self._ping_at = now + self.timers.ping_every_s
            self.ping(now)

    def ping(self, now: float) -> None:
        """Puts a ping into `outgoing`; its answer becomes an RttSample."""
        stamp = int(now * 1e6)
        self._outgoing.append(self.send(Ping(stamp)))
        self._pings.append((stamp, now))

    def _following(self, table: Table, messages: Sequence[Message]) -> SessionState | None:
        """The state after these messages of one frame; None where one of them must not come, or not with others."""
        if len(messages) == 1:
            return table.get((self.state, type(messages[0])))
        kinds = {type(one) for one in messages}
        allowed = all(kind in m.TOGETHER and (self.state, kind) in table for kind in kinds)
        return self.state if allowed else None  # none of those that may be together changes it

    def _read(self, data: bytes) -> Sequence[Message]:
        if self.state is SessionState.CLOSED:
            raise RemoteProtocolError("unexpected", "a message came after the end")
        if self.state in _HANDSHAKE_STATES:
            return [self._read_handshake(data)]

        payload = signing.unseal(self.peer_key, self.receive_kind, data, self.max_received)
        frame = m.decoded(m.decode_frame, payload, A_MESSAGE)
        if frame.session != self.session:
            raise RemoteProtocolError("session", "a frame of another session")
        if frame.seq != self._received + 1:
            raise RemoteProtocolError("sequence", f"frame {frame.seq} came where {self._received + 1} was due")

        self._received += 1
        return frame.bodies

    def _read_handshake(self, data: bytes) -> Message:
        if len(data) > MAX_HANDSHAKE_BYTES:
            raise RemoteProtocolError("oversize", f"a handshake message of {len(data)} bytes is longer than allowed")
        message: Message = m.decoded(m.decode_handshake, data, A_MESSAGE)
        return message

    def _handle(self, message: Message, data: bytes, now: float) -> list[Event]:
        match message:
            case Ping():
                self._outgoing.append(self.send(Pong(message.stamp)))
                return []
            case Pong():
                if not self._pings or self._pings[0][0] != message.stamp:
                    raise RemoteProtocolError("pong", "a pong that answers no ping")
                return [RttSample(now - self._pings.popleft()[1])]
        return [message]

    def _check_deadlines(self, now: float) -> None:
        timers = self.timers
        if self.state is SessionState.CLOSED:
            return
        if self.state is not SessionState.OPEN:
            if now >= self._deadline:
                text = f"the handshake was not complete after {timers.handshake_s:g} s"
                raise RemoteProtocolError("handshake-timeout", text, close_code=CloseCode.TIMEOUT)
            return

        quiet_s = now - self.received_at
        unread_s = now - self._pings[0][1] if self._pings else 0.0
        if max(quiet_s, unread_s) >= timers.silent_s:
            raise RemoteProtocolError("silent", f"no answer for {timers.silent_s:g} s", close_code=CloseCode.TIMEOUT)
        if unread_s >= timers.unread_s and quiet_s <= 2 * timers.ping_every_s:
            text = f"the peer sends, but has not read for {timers.unread_s:g} s"
            raise RemoteProtocolError("slow", text, close_code=CloseCode.SLOW)


class WorkerSession(Session):
    """The worker's end. The `Hello` waits in `outgoing` from the start; a `Refuse` is an event and closes."""

    receives = WORKER_RECEIVES
    sends = FRAMES_TO_GATEWAY
    send_kind = signing.WORKER_FRAME
    receive_kind = signing.GATEWAY_FRAME
    max_sent = m.MAX_TREE_BYTES
    max_received = signing.MAX_PAYLOAD_BYTES

    def __init__(
        self,
        me: WorkerIdentity,
        pin: Pin,
        seen_spki: bytes,
        nonce: bytes,
        now: float,
        timers: Timers = DEFAULT_TIMERS,
    ) -> None:
        """`seen_spki`: hash of this connection's actual TLS key; `nonce`: 32 fresh random bytes.

        Raises RemoteProtocolError (`pin`) before anything is sent to a machine with another TLS key.
        """
        super().__init__(me.key, SessionState.CHALLENGE, now, timers)
        if seen_spki != pin.spki_hash:
            raise RemoteProtocolError("pin", "the TLS key is not the one that was pinned at pairing")

        self._me = me
        self._pin = pin
        digests = me.tokenizer_digest, me.model_digest
        self._hello = Hello(PROTOCOL, me.key.public, nonce, *digests, me.vocab_size, me.sequences, me.name)
        self._outgoing.append(m.encode(self._hello))

    def _handle(self, message: Message, data: bytes, now: float) -> list[Event]:
        match message:
            case Challenge():
                self._prove(message)
                return []
            case Refuse():
                verify_refusal(message, m.encode(self._hello), self._pin.gateway_key)
            case m.Welcome():
                return [Linked(message.branching)]
        return super()._handle(message, data, now)

    def _prove(self, challenge: Challenge) -> None:
        if challenge.gateway_key != self._pin.gateway_key:
            raise RemoteProtocolError("gateway-key", "this is not the gateway that was paired")
        if challenge.spki_hash != self._pin.spki_hash:
            raise RemoteProtocolError("pin", "the gateway names another TLS key than this connection has")

        both = transcript(self._hello, challenge)
        signing.verify(challenge.gateway_key, signing.GATEWAY_CHALLENGE, both, challenge.signature)
        if self._me.tokenizer_digest not in (challenge.tokenizer_digest, NO_TOKENIZER):
            raise RemoteProtocolError("tokenizer", "the gateway let a tokenizer in that is not its own")

        self.peer_key = challenge.gateway_key
        self.session = session_id(both)
        self._outgoing.append(m.encode(proof(self._key.sign(signing.WORKER_PROOF, both), self._me.rotations)))


def _names(messages: Sequence[Message]) -> str:
    return " and ".join(sorted({type(one).__name__ for one in messages}))


def together(bodies: Sequence[m.Body], max_bytes: int) -> Iterator[Sequence[m.Body]]:
    """The same messages in their order, as few frames as hold them; `max_bytes`: of one frame's payload."""
    start = 0
    size = FRAME_BYTES
    for end, body in enumerate(bodies):
        more = len(m.encode(body))
        if end > start and (end - start == m.MAX_PARTS or size + more > max_bytes):
            yield bodies[start:end]
            start = end
            size = FRAME_BYTES
        size += more
    yield bodies[start:]
