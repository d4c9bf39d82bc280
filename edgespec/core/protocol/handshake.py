"""Transcript, signatures and refusals of the handshake: the pure functions under session.py.

All fields of Hello and Challenge go into one hash, the transcript. Both sides sign it, each under its own domain, and
the session id is derived from it. So a frame that carries the session id is bound to version, keys, nonces, TLS key,
tokenizer and model digests.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from edgespec.core.errors import EdgespecError, PairingError, RemoteProtocolError, TokenizerMismatch
from edgespec.core.protocol import signing
from edgespec.core.protocol.messages import PROTOCOL, Challenge, Hello, Refuse, RefuseReason, Rotation
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.signing import SigningKey

MAX_HANDSHAKE_BYTES = 2048
NONCE_BYTES = 32
NO_TOKENIZER = bytes(32)
"""In place of a tokenizer's digest in `Hello`: the worker links to fetch the target's."""


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


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a worker is refused: the content of `Refuse`, and the close code after it."""

    reason: RefuseReason
    text: str
    code: CloseCode

    def signed(self, key: SigningKey, hello: bytes) -> Refuse:
        """The message; `hello` is the Hello as received, whose nonce makes the signature valid only once."""
        signature = key.sign(signing.GATEWAY_REFUSE, _refusal_digest(hello, self.reason, self.text))
        return Refuse(self.reason, self.text, signature)

    def error(self) -> RemoteProtocolError:
        """The error that ends the gateway's session after it."""
        return RemoteProtocolError(self.reason, self.text, close_code=self.code)


def verify_refusal(refuse: Refuse, hello: bytes, gateway_key: bytes) -> None:
    """Raises RemoteProtocolError (`bad-signature`) unless the gateway refused this very Hello."""
    digest = _refusal_digest(hello, refuse.reason, refuse.message)
    signing.verify(gateway_key, signing.GATEWAY_REFUSE, digest, refuse.signature)


def admit(hello: Hello, me: GatewayIdentity) -> Refusal | None:
    """The reason to refuse this worker, if any. Raises RemoteProtocolError (`weak-key`) for a bad public key.

    Whether the key is paired is checked after the proof: only the owner of a key may learn its status.
    """
    if hello.protocol != PROTOCOL:
        return refusal_of_version(hello.protocol)
    signing.check_public_key(hello.worker_key)
    fetches = hello.tokenizer_digest == NO_TOKENIZER and me.tokenizer_file
    if hello.tokenizer_digest != me.tokenizer_digest and not fetches:
        theirs, ours = hello.tokenizer_digest.hex()[:16], me.tokenizer_digest.hex()[:16]
        do = (
            "it can be fetched" if me.tokenizer_file else "which is not in a GGUF file: set the worker's `draft.target`"
        )
        text = f"The worker's draft model has tokenizer {theirs}, the gateway's target has {ours}; {do}."
        return Refusal("tokenizer", text, CloseCode.TOKENIZER)
    return None


def standing_error(standing: Standing, worker_key: bytes) -> RemoteProtocolError | None:
    """The error that ends the session of a worker with a proven key; None if the key is paired."""
    worker = key_id(worker_key)
    match standing:
        case "unpaired":
            return RemoteProtocolError("unpaired", f"The key {worker} is not paired.", close_code=CloseCode.UNPAIRED)
        case "revoked":
            return RemoteProtocolError("revoked", f"The key {worker} was revoked.", close_code=CloseCode.REVOKED)
        case "expired":
            text = f"The pairing of the key {worker} has expired; `cloud-gateway workers expire {worker}` prolongs it."
            return RemoteProtocolError("expired", text, close_code=CloseCode.EXPIRED)
        case "version":
            text = f"The key {worker} was paired at a later version than {PROTOCOL}; update the gateway, or pair again."
            return RemoteProtocolError("version", text, close_code=CloseCode.VERSION)
        case "quarantined":
            text = f"The key {worker} is quarantined; `cloud-gateway workers release {worker}` ends that."
            return RemoteProtocolError("quarantined", text, close_code=CloseCode.QUARANTINED)
    return None


def refusal_of_version(theirs: str) -> Refusal:
    """The refusal of a worker with another protocol version."""
    shown = theirs if re.fullmatch(r"edgespec/[0-9.]{1,8}", theirs) else "something else"  # untrusted text
    text = f"The gateway speaks {PROTOCOL} and the worker {shown}: update the older one."
    return Refusal("version", text, CloseCode.VERSION)


def foreign_version(data: bytes) -> str | None:
    """The version in a Hello of any version, if it is not PROTOCOL.

    Common to all versions: a msgpack array whose first elements are "hello" and the version.
    """
    found = re.match(rb"(?s)(?:[\x90-\x9f]|\xdc..)\xa5hello[\xa0-\xbf](edgespec/[0-9.]{1,8})", data)
    theirs = found[1].decode() if found else PROTOCOL
    return theirs if theirs != PROTOCOL else None


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


def _refusal_digest(hello: bytes, reason: str, text: str) -> bytes:
    return signing.digest("refuse", hello, reason.encode(), text.encode())
