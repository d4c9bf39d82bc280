"""Random sequences of events for the machines of link, pairing and peers: what arrives, what time does, what is sent.

Each is a generator that yields, for each event, what came of it, until the machine has ended. The other side has the
right keys, so that also what only a paired machine can send gets through; most of what it sends is right.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

from edgespec.core.errors import LocalProtocolError, RemoteProtocolError
from edgespec.core.pairing import messages as pairing
from edgespec.core.pairing.exchange import Party, State, WorkerExchange
from edgespec.core.pairing.messages import PairingFailed
from edgespec.core.pairing.window import MAX_FAILURES, Paired, PairingWindow, Window
from edgespec.core.peers import handshake as peers
from edgespec.core.peers.handshake import CallerHandshake, ListenerHandshake
from edgespec.core.protocol import messages as m
from edgespec.core.protocol import session, signing
from edgespec.core.protocol.gateway_session import GatewaySession
from edgespec.core.protocol.inflow import Inflow, InflowLimits
from edgespec.core.protocol.records import Records
from edgespec.core.protocol.session import Session, WorkerSession
from edgespec.core.protocol.signing import SigningKey
from edgespec.shared.words import new_code
from tools.fuzz import ends
from tools.fuzz.ends import GATEWAY, GATEWAY_KEY, NONCE, PIN, SPKI, WORKER, WORKER_KEY
from tools.fuzz.mutate import MSGPACK, mutated

STANDINGS = ("paired", "paired", "paired", "unpaired", "revoked", "expired", "version", "quarantined")
WAITS_S = (0.0, 0.0, 0.001, 0.3, 1.0, 4.0)


def gateway_session(rng: random.Random) -> Iterator[str]:
    """The gateway's end of a link."""
    standing: Any = rng.choice(STANDINGS)
    machine = GatewaySession(GATEWAY, lambda key: standing if key == WORKER_KEY.public else "unpaired", NONCE, 0.0)
    other = WorkerSession(WORKER, PIN, SPKI, rng.randbytes(32), 0.0)
    return _session(rng, machine, other, WORKER_KEY)


def worker_session(rng: random.Random) -> Iterator[str]:
    """The worker's end."""
    machine = WorkerSession(WORKER, PIN, SPKI, rng.randbytes(32), 0.0)
    other = GatewaySession(GATEWAY, lambda key: "paired", NONCE, 0.0)
    return _session(rng, machine, other, GATEWAY_KEY)


def _session(rng: random.Random, machine: Session, other: Session, key: SigningKey) -> Iterator[str]:
    """`key`: of the other side, which numbers and signs its frames by itself once the handshake is over."""
    now, number, tame = 0.0, 0, rng.random() < 0.5
    sent: list[bytes] = []
    while not _over(machine):
        now += rng.choice(WAITS_S)
        with contextlib.suppress(RemoteProtocolError, LocalProtocolError):  # of the other side, which is no matter
            for data in machine.outgoing():
                other.receive(data, now)
        sent += other.outgoing()
        try:
            match int(rng.random() * 12):
                case 0:
                    machine.tick(now)
                    yield "tick"
                    continue
                case 1:
                    yield _sends(rng, machine)
                    continue
            if machine.state not in session._HANDSHAKE_STATES:
                number += 1
                data = _sealed(rng, machine, key, number, tame)
            elif sent and (tame or rng.random() < 0.8):
                data = sent.pop(0)
            else:
                data = mutated(rng, [*sent, *_HANDSHAKE], MSGPACK)
            machine.receive(data, now)
            yield f"{machine.state}"
        except RemoteProtocolError as error:
            assert _over(machine), "a refused message did not end the session"
            yield error.reason
    assert machine.wake_at == float("inf"), "a session that is over waits for a time"


def _over(machine: Session | PairingWindow) -> bool:
    return machine.state in (session.State.CLOSED, Window.CLOSED)


_HANDSHAKE = [m.encode(one) for one in ends.HANDSHAKE]
_BODIES = [m.encode(frame) for frame in ends.FRAMES]


def _sends(rng: random.Random, machine: Session) -> str:
    """This side's own message; one that the state forbids is refused as this side's fault."""
    bodies = rng.choice(ends.FRAMES).bodies
    allowed = all((machine.state, type(body)) in machine.sends for body in bodies)
    try:
        machine.send(*bodies)
    except LocalProtocolError:
        assert not allowed, f"{type(bodies[0]).__name__} is refused in state {machine.state}"
        return "not sent"
    assert allowed, f"{type(bodies[0]).__name__} is sent in state {machine.state}"
    return "sent"


def _sealed(rng: random.Random, machine: Session, key: SigningKey, number: int, tame: bool) -> bytes:
    """The other side's next frame, in its session; unless it is tame perhaps of another number or kind, or altered."""
    allowed = [kind for state, kind in machine.receives if state is machine.state]
    bodies = [body for body in ends.BODIES if type(body) in allowed or not (tame or rng.random() < 0.9)]
    sent = [rng.choice(bodies)]
    if tame and isinstance(sent[0], m.Pong) and machine._pings:
        sent = [m.Pong(machine._pings[0][0])]
    others = [body for body in bodies if type(body) in m.TOGETHER or (not tame and rng.random() < 0.05)]
    if others and (type(sent[0]) in m.TOGETHER or (not tame and rng.random() < 0.05)):
        sent += rng.choices(others, k=rng.choice((0, 0, 1, 3, m.MAX_PARTS - 1, m.MAX_PARTS - tame)))
    wild = 1.0 if tame else rng.random()
    payload = m.encode(m.Frame(machine.session, number + (wild < 0.05), sent))
    if 0.05 < wild < 0.2:
        payload = mutated(rng, [payload, *_BODIES], MSGPACK)[: signing.MAX_PAYLOAD_BYTES]
    kind = machine.send_kind if 0.2 < wild < 0.25 else machine.receive_kind
    data = signing.seal(key, kind, payload)
    return mutated(rng, [data]) if 0.25 < wild < 0.3 else data


def pairing_window(rng: random.Random) -> Iterator[str]:
    """The gateway's window, with one worker that has the code and messages of anybody in any order."""
    window = PairingWindow(Party(GATEWAY_KEY, "gw"), SPKI, new_code, rng.randbytes)
    now, code = 0.0, window.open(0.0)
    worker = WorkerExchange(code, Party(WORKER_KEY, "lab-7"), SPKI, rng.randbytes)
    message: pairing.PairingMessage | None = worker.start()
    exchange, failures = None, 0
    while not _over(window):
        now += rng.choice(WAITS_S)
        try:
            if rng.random() < 0.2:
                data = mutated(rng, [m.encode(one) for one in (message, *ends.PAIRING) if one], MSGPACK)
                message = pairing.decode_pairing(data)
            if exchange is None or rng.random() < 0.1:
                assert message is not None
                exchange = window.begin(rng.choice(("a", "b")), getattr(message, "nameplate", code.nameplate), now)
            answer = window.receive(exchange, message, now) if message is not None else None
            if exchange.state is State.PROVEN:
                answer = window.stored(exchange, "lab-7")
            message = worker.receive(answer) if answer is not None else None
            yield f"{exchange.state.value} {worker.state.value}"
            if rng.random() < 0.1:
                window.poll(now)
        except (PairingFailed, RemoteProtocolError) as error:
            exchange, worker = (
                None,
                WorkerExchange(window._code or code, Party(WORKER_KEY, "lab-7"), SPKI, rng.randbytes),
            )
            message = worker.start()
            yield str(error.reason)
        except LocalProtocolError:
            raise AssertionError("the window took a message for its own fault") from None
        failures += sum(type(event).__name__ == "Failed" for event in window.events() if not isinstance(event, Paired))
        assert failures <= MAX_FAILURES
        if failures == MAX_FAILURES:
            assert _over(window)


def peer_handshake(rng: random.Random) -> Iterator[str]:
    """Both sides of the handshake of two daemons; each message may be another one, or altered."""
    refusal: peers.PeerReason | None = rng.choice((None, None, "unpaired"))
    caller = CallerHandshake(WORKER_KEY, GATEWAY_KEY.public, "lab-8", SPKI, rng.randbytes(32))
    listener = ListenerHandshake(GATEWAY_KEY, SPKI, NONCE, lambda key: refusal)
    spoils = rng.random() < 0.7
    steps: list[Callable[[Any], Any]] = [
        listener.challenge,
        lambda message: caller.challenged(message, "relay", NONCE),
        listener.asked,
        lambda message: caller.answered(
            peers.Granted("lab-8", True, []) if isinstance(message, peers.Ask) else message
        ),
    ]
    message: Any = caller.hello
    while steps:
        try:
            if spoils and rng.random() < 0.3:
                data = mutated(rng, [m.encode(message), *map(m.encode, ends.PEERS)], MSGPACK)
                message = peers.decode_peer(data)
            step = steps.pop(0) if rng.random() < 0.95 else rng.choice(steps)
            message = step(message)
            yield type(message).__name__
        except (RemoteProtocolError, peers.PeerUnavailable) as error:
            yield error.reason
            return
        except LocalProtocolError:
            assert not listener._digest, "a challenged listener takes a message for its own fault"
            yield "too early"
            return


def inflow(rng: random.Random) -> Iterator[str]:
    """Bytes of a connection in pieces of any size: an HTTP head, then frames of WebSocket, or anything."""
    limits = InflowLimits(unproven_bytes=rng.choice((300, 65_536)), unproven_frames=rng.choice((4, 64)))
    machine, now, waiting = Inflow(limits), 0.0, bytearray()
    stream = bytearray(
        mutated(rng, [b"GET /link HTTP/1.1\r\nHost: gw\r\n\r\n"]) if rng.random() < 0.2 else b"HTTP/1.1 101 x\r\n\r\n"
    )
    passed = 0
    for _ in range(rng.randint(1, 30)):
        now += rng.choice(WAITS_S)
        stream += _websocket(rng) if rng.random() < 0.9 else rng.randbytes(int(rng.random() * 40))
        size = rng.choice((1, 2, 5, 50, 3000))
        waiting += stream[:size]
        del stream[:size]
        machine.proven |= rng.random() < 0.1
        try:
            count = machine.take(waiting, now)
        except RemoteProtocolError as error:
            assert error.reason == "flood"
            yield "flood"
            return
        assert 0 <= count <= len(waiting), f"{count} of {len(waiting)} bytes"
        assert machine.wake_at is None or machine.wake_at >= now
        passed += count
        assert machine.bytes == passed
        del waiting[:count]
        yield "passed" if count else "held"


def _websocket(rng: random.Random) -> bytes:
    """One frame (RFC 6455, section 5.2), whose length may be a lie."""
    payload = bytes(int(rng.random() ** 4 * 70_000))
    size = len(payload) if rng.random() < 0.95 else rng.choice((0, 126, 65_536, 2**63 - 1))
    masked = rng.choice((0, 0x80))
    if size < 126:
        length = bytes([masked | size])
    else:
        length = (
            bytes([masked | 126]) + size.to_bytes(2, "big")
            if size < 65_536
            else bytes([masked | 127]) + size.to_bytes(8, "big")
        )
    return (
        bytes([rng.choice((0x82, 0x82, 0x82, 0x81, 0x89, 0x8A, 0x88, 0x00, 0xFF))])
        + length
        + bytes(masked // 32)
        + payload
    )


def records(rng: random.Random) -> Iterator[str]:
    """Bytes of a TLS connection in pieces of any size; as many records are counted as a walk over the whole finds."""
    machine, whole, now = Records(), bytearray(), 0.0
    for _ in range(rng.randint(1, 30)):
        now += rng.choice(WAITS_S)
        size = rng.choice((0, 1, 7, 300))
        piece = b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size) if rng.random() < 0.8 else rng.randbytes(9)
        piece = piece[: rng.randint(1, len(piece))] if rng.random() < 0.3 else piece
        whole += piece
        allowed = machine.take(memoryview(piece), rng.random() < 0.5, now)
        at = found = 0
        while at + 5 <= len(whole):
            at, found = at + 5 + int.from_bytes(whole[at + 3 : at + 5], "big"), found + 1
        assert machine.count == found, f"{machine.count} records counted, {found} sent"
        yield "allowed" if allowed else "too many"
