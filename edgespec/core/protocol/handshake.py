"""Transcript, signatures and refusals of the handshake: the pure functions under session.py.

All fields of Hello and Challenge go into one hash, the transcript. Both sides sign it, each under its own domain, and
the session id is derived from it. So a frame that carries the session id is bound to version, keys, nonces, TLS key,
tokenizer and model digests.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from edgespec.core.errors import EdgespecError, PairingError, RemoteProtocolError, TokenizerMismatch
from edgespec.core.protocol import signing
from edgespec.core.protocol.messages import PROTOCOL, Challenge, Hello, Refuse, Rotation
from edgespec.core.protocol.signing import SigningKey

MAX_HANDSHAKE_BYTES = 2048
NONCE_BYTES = 32
NO_TOKENIZER = bytes(32)
"""In place of a tokenizer's digest in `Hello`: the worker links to fetch the target's."""

REASONS = frozenset(
    "bad-signature busy control expired fault flood gateway-key handshake-timeout internal malformed oversize padding "
    "pairing-order pin pong prefix quarantined revoked rotation sequence session silent slow stopping superseded tls "
    "tokenizer unexpected unpaired version vocabulary weak-key websocket shape-nodes shape-columns shape-parent "
    "shape-duplicate-sibling shape-vocabulary shape-depth shape-ids shape-entropy shape-cost shape-steps".split()
)
"""Labels with which sessions, frames and links end, and that a log shows of another machine: a peer can write anything
into a close reason or a `Bye`, parts of a prompt included, so any other text is withheld."""


class CloseCode(enum.IntEnum):
    """WebSocket close codes; the 44xx ones are this protocol's own."""

    NORMAL = 1000
    GOING_AWAY = 1001
    OURS = 1011
    RESTART = 1012
    SLOW = 1013
    PROTOCOL = 4400
    UNPAIRED = 4401
    REVOKED = 4403
    EXPIRED = 4410
    QUARANTINED = 4423
    TIMEOUT = 4408
    SUPERSEDED = 4409
    TOKENIZER = 4415
    VERSION = 4426
    FLOOD = 4429


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The worker's fields of `Hello`, and its key. Digests are 32 bytes."""

    key: SigningKey
    name: str
    tokenizer_digest: bytes
    model_digest: bytes
    vocab_size: int
    sequences: int
    rotations: tuple[Rotation, ...] = ()
    """Statements that lead to the key, where it was rotated."""
    requests: int = 0
    """Drafted for at once, at most; 0: it does not say."""


@dataclass(frozen=True, slots=True)
class GatewayIdentity:
    """The gateway's fields of `Challenge`, and its key. Hash and digest are 32 bytes."""

    key: SigningKey
    name: str
    spki_hash: bytes
    tokenizer_digest: bytes
    branching: int = 4
    tokenizer_file: bytes = field(default=b"", repr=False)
    """What a worker may fetch (tokenizer_file.py); empty where the target has none to send."""


@dataclass(frozen=True, slots=True)
class Pin:
    """What a worker stored of its gateway at pairing, or when that rotated its identity: two times 32 bytes."""

    gateway_key: bytes
    spki_hash: bytes
    proven_at: float = 0.0
    """When the gateway proved this key last, in Unix seconds; a successor is accepted for a while after."""


Standing = Literal["paired", "unpaired", "revoked", "expired", "version", "quarantined"]
Lookup = Callable[[bytes], Standing]
"""Worker key (32 bytes) -> the key's pairing status."""


def transcript(hello: Hello, challenge: Challenge) -> bytes:
    """SHA-256 over all fields of Hello and Challenge except the signature, each preceded by its length."""
    return signing.digest(
        "transcript",
        hello.protocol.encode(),
        hello.worker_key,
        hello.nonce,
        hello.tokenizer_digest,
        hello.model_digest,
        hello.vocab_size.to_bytes(8, "big"),
        hello.sequences.to_bytes(8, "big"),
        hello.name.encode(),
        challenge.gateway_key,
        challenge.nonce,
        challenge.spki_hash,
        challenge.tokenizer_digest,
    )


def session_id(transcript_hash: bytes) -> bytes:
    """The session id (16 bytes), which every later frame carries."""
    return hashlib.sha256(f"{PROTOCOL} session\0".encode() + transcript_hash).digest()[:16]


def verify_refusal(refuse: Refuse, hello: bytes, gateway_key: bytes) -> None:
    """Raises RemoteProtocolError (`bad-signature`) unless the gateway refused this very Hello."""
    digest = refusal_digest(hello, refuse.reason, refuse.message)
    signing.verify(gateway_key, signing.GATEWAY_REFUSE, digest, refuse.signature)


def final_error(reason: str, text: str) -> EdgespecError | None:
    """The error that ends the worker process after a signed `Refuse` or `Bye`; None where it should reconnect."""
    match reason:
        case "unpaired" | "revoked":
            return PairingError(f"{text} Pair this worker again: `cloud-gateway pair` there, `edgespec pair` here.")
        case "expired":
            return PairingError(
                f"{text} Ask its operator to prolong the pairing by `cloud-gateway workers expire`, and start again."
            )
        case "tokenizer":
            return TokenizerMismatch(text)
        case "version":
            return RemoteProtocolError("version", text, close_code=CloseCode.VERSION)
    return None


def quarantine_notice(worker: str) -> str:
    """What a worker shows its admin after a signed `quarantined`; `worker`: its id. It goes on reconnecting."""
    return (
        f"The gateway has quarantined this worker, {worker}: far fewer of its draft tokens were accepted than it "
        "claims, or it broke the protocol again and again. Check its draft model and version with `edgespec doctor`, "
        f"then ask the gateway's operator for `cloud-gateway workers release {worker}`; it is linked again after that."
    )


def shown(reason: str) -> str:
    """The label, or a constant in place of any other text."""
    return reason if reason in REASONS else "another reason" if reason else "no reason"


def refusal_digest(hello: bytes, reason: str, text: str) -> bytes:
    return signing.digest("refuse", hello, reason.encode(), text.encode())
