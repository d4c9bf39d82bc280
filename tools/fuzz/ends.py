"""Both ends of a link and a pairing: their keys, and one of each message."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.core.pairing import messages as pairing
from edgespec.core.protocol import messages as m
from edgespec.core.protocol.handshake import GatewayIdentity, Pin, WorkerIdentity, rotation
from edgespec.core.protocol.signing import SigningKey

VOCABULARY = 300
WORKER_KEY, GATEWAY_KEY, FORMER_KEY = (SigningKey(letter * 32) for letter in (b"w", b"g", b"f"))
HASH = b"h" * 32
SPKI = b"s" * 32
TOKENIZER = b"t" * 32
NONCE = b"n" * 32
SIGNATURE = bytes(64)
ROTATION = rotation(FORMER_KEY, WORKER_KEY)
WORKER = WorkerIdentity(WORKER_KEY, "lab-7", TOKENIZER, HASH, VOCABULARY, 16, (ROTATION,))
GATEWAY = GatewayIdentity(GATEWAY_KEY, "gw", SPKI, TOKENIZER)
PIN = Pin(GATEWAY_KEY.public, SPKI)

SAMPLING = m.Sampling(0.7, 40, 0.9, 0.1, 1.1, 0.5, -0.5, {3: 1.5, 7: -100.0}, 7)
TO_WORKER: Sequence[m.AnyBody] = (
    m.Open(1, 1, 5, [1, 2, 3], m.Sampling()),
    m.Open(2, 1, 3, [1, 2, 3], SAMPLING, b"scope"),
    m.Commit(1, 1, 3, [5, 6], HASH, 20_000, 9_000, 3),
    m.Share(1, 1, 1, 2),
    m.Books(2457, 157, 194, 1111, 791),
    m.WorkerTimes(98_400, 121_000),
    m.Close(1, 1, "done"),
    m.Piece(HASH, 4, b"data"),
    m.Ping(7),
    m.Pong(7),
    m.Bye("stopping"),
)
TO_GATEWAY: Sequence[m.AnyBody] = (
    m.Tree(1, 1, 3, HASH, 1, [0], [5], [100], [200]),
    m.Tree(1, 1, 3, HASH, 7, [0, 7, 7, 9], [5, 6, 7, 8], [100, 0, 5_000, 200_000], [0, 200, 5_000, 1]),
    m.StepTimes([1, 4, 16], [6_000, 9_000, 20_000]),
    m.Pause("owner"),
    m.Resume(),
    m.Fetch(0),
    m.Decline(1, 1, "too long"),
    m.Ping(7),
    m.Pong(7),
    m.Bye("stopping"),
)
BODIES: Sequence[m.AnyBody] = (m.Welcome("gw", 4), *TO_WORKER, *TO_GATEWAY)
BATCHES = [[one for one in bodies if type(one) in m.TOGETHER] for bodies in (TO_WORKER, TO_GATEWAY)]
FRAMES = [m.Frame(HASH[:16], 1, bodies) for bodies in (*([body] for body in BODIES), *BATCHES)]
HANDSHAKE: Sequence[m.Message] = (
    m.Hello(m.PROTOCOL, WORKER_KEY.public, NONCE, TOKENIZER, HASH, VOCABULARY, 16, "lab-7"),
    m.Challenge(GATEWAY_KEY.public, NONCE, SPKI, TOKENIZER, SIGNATURE),
    m.Proof(SIGNATURE),
    m.RotatedProof(SIGNATURE, [ROTATION]),
    m.Refuse("tokenizer", "The worker has another tokenizer.", SIGNATURE),
)
PAIRING: Sequence[m.Message] = (
    pairing.Start(1, 4821, WORKER_KEY.public, "lab-7", b"A" + HASH),
    pairing.Reply(1, GATEWAY_KEY.public, "gw", b"B" + HASH),
    pairing.Confirm(HASH, SIGNATURE),
    pairing.Accepted(HASH),
    pairing.Refused(pairing.Reason.CODE),
)
