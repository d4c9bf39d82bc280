"""A worker's and a gateway's session with each other's keys, joined without sockets."""

from __future__ import annotations

from typing import Any

import pytest

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol import messages as m
from edgespec.core.protocol.gateway_session import GatewaySession
from edgespec.core.protocol.handshake import GatewayIdentity, Pin, Standing, WorkerIdentity
from edgespec.core.protocol.session import Linked, RttSample, SessionState, WorkerSession
from edgespec.core.protocol.signing import SigningKey

WORKER_KEY = SigningKey(b"w" * 32)
GATEWAY_KEY = SigningKey(b"g" * 32)
SPKI = b"s" * 32
TOKENIZER = b"t" * 32
MODEL = b"m" * 32
WORKER = WorkerIdentity(WORKER_KEY, "lab-7", TOKENIZER, MODEL, 49152, 4)
GATEWAY = GatewayIdentity(GATEWAY_KEY, "gw", SPKI, TOKENIZER)
PIN = Pin(GATEWAY_KEY.public, SPKI)
WORKER_NONCE = b"1" * 32
GATEWAY_NONCE = b"2" * 32
HASH = b"h" * 32
TREE = m.Tree(1, 1, 3, HASH, 1, [0], [5], [100], [200])
COMMIT = m.Commit(1, 1, 3, [5], HASH)
GATEWAY_BODIES: list[m.AnyBody] = [
    m.Open(1, 1, 3, [1, 2, 3], m.Sampling()),
    COMMIT,
    m.Close(1, 1, "done"),
    m.Piece(HASH, 4, b"data"),
    m.Ping(7),
    m.Bye("stopping"),
]
WORKER_BODIES: list[m.WorkerBody] = [
    TREE,
    m.StepTimes([1, 4], [6000, 9000]),
    m.Pause("owner"),
    m.Resume(),
    m.Fetch(0),
    m.Decline(1, 1, "too long"),
    m.Ping(7),
    m.Bye("stopping"),
]


def worker(now: float = 0.0, **changes: Any) -> WorkerSession:
    me = WorkerIdentity(**{name: changes.get(name, getattr(WORKER, name)) for name in WorkerIdentity.__slots__})
    return WorkerSession(me, changes.get("pin", PIN), changes.get("seen", SPKI), WORKER_NONCE, now)


def gateway(standing: Standing = "paired", now: float = 0.0, nonce: bytes = GATEWAY_NONCE) -> GatewaySession:
    return GatewaySession(GATEWAY, lambda key: standing, nonce, now)


def deliver(sender: Any, receiver: Any, now: float = 0.0) -> list[Any]:
    return [event for data in sender.outgoing() for event in receiver.receive(data, now)]


def linked() -> tuple[WorkerSession, GatewaySession]:
    w = worker()
    g = gateway()
    assert deliver(w, g) == [] and deliver(g, w) == []
    assert deliver(w, g, now=0.02) == [RttSample(0.02), Linked()]
    assert deliver(g, w, now=0.02) == [Linked(GATEWAY.branching)]
    return w, g


def reason_of(session: Any, data: bytes, now: float = 0.0) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        session.receive(data, now)
    assert session.state is SessionState.CLOSED
    return caught.value
