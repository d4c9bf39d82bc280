"""Both ends of a link, authenticated without a socket: what benchmarks send frames through."""

from __future__ import annotations

from edgespec.core.protocol.gateway_session import GatewaySession
from edgespec.core.protocol.handshake import GatewayIdentity, Pin, WorkerIdentity
from edgespec.core.protocol.session import WorkerSession
from edgespec.core.protocol.signing import SigningKey

VOCAB = 49_152


def linked_sessions() -> tuple[WorkerSession, GatewaySession]:
    """Both ends of an authenticated link, without a socket."""
    spki, digest = b"s" * 32, b"t" * 32
    worker_key, gateway_key = SigningKey(b"w" * 32), SigningKey(b"g" * 32)
    me = WorkerIdentity(worker_key, "bench", digest, b"m" * 32, VOCAB, 4)
    worker = WorkerSession(me, Pin(gateway_key.public, spki), spki, b"1" * 32, 0.0)
    gateway = GatewaySession(GatewayIdentity(gateway_key, "bench", spki, digest), lambda key: "paired", b"2" * 32, 0.0)
    for _ in range(2):
        for data in worker.outgoing():
            gateway.receive(data, 0.0)
        for data in gateway.outgoing():
            worker.receive(data, 0.0)
    return worker, gateway
