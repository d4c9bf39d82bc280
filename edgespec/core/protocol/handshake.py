"""Transcript, signatures and refusals of the handshake, and changes of key: the pure functions under session.py.

All fields of Hello and Challenge go into one hash, the transcript. Both sides sign it, each under its own domain, and
the session id is derived from it. So a frame that carries the session id is bound to version, keys, nonces, TLS key,
tokenizer and model digests.

A key is changed by a statement that the old and the new key sign. A worker presents its latest statements with its
proof. The gateway takes the one whose old key it has paired and follows the rest to the key that was just proven. No
nonce is needed: a statement is of use only to the owner of the new key, and only while the old one is paired, which
ends when it is taken. A gateway's statements name its TLS key too and stand in its TLS certificate, so that a worker
can judge the machine before it sends anything. The worker then takes the new key for this connection, and stores it
once it is proven.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from edgespec.core.errors import (
    EdgespecError,
    PairingError,
    RemoteProtocolError,
    TokenizerMismatch,
)
from edgespec.core.protocol import signing
from edgespec.core.protocol.messages import (
    PROTOCOL,
    Bytes32,
    Bytes64,
    Challenge,
    Hello,
    Message,
    Proof,
    Refuse,
    RotatedProof,
    Rotation,
)
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
    sends_tokenizer: bool = False
    """Whether a worker may link without a tokenizer, to fetch the target's."""
    advice: str = "set the worker's `draft.model` to a draft of the target's family"
    """The end of the sentence with which another tokenizer is refused."""


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
    """The error that ends the worker process after a signed `Refuse` or `Bye`; None if it should reconnect.

    Only what the gateway has a record of is final: `revoked` and `expired` stand in its list beside the key. `unpaired`
    is the absence of a record. A list that is restored from a backup, or whose disk returns, ends that by itself.
    """
    match reason:
        case "revoked":
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


@dataclass(frozen=True, slots=True)
class Notice:
    """Why the gateway ended a link by a signed `Bye`, for the worker's admin; the worker goes on reconnecting."""

    reason: str
    text: str
    """What is wrong, whose fault it is, and what to do."""


NOTICES: Mapping[str, str] = {
    "quarantined": (
        "The gateway has quarantined this worker, {worker}: far fewer of its draft tokens were accepted than it "
        "claims, or it broke the protocol again and again. Check its draft model and version, "
        "then ask the gateway's operator for `cloud-gateway workers release {worker}`; it is linked again after that."
    ),
    "unpaired": (
        "The gateway's list does not name this worker, {worker}. The worker goes on trying, since the operator may "
        "restore the list. If it stays so, pair this worker again: `cloud-gateway pair` there, `edgespec pair` here."
    ),
    "superseded": (
        "Another process has linked with the key of this worker, {worker}: the worker runs twice, or its state folder "
        "was copied, for example with the image of a machine. The gateway gives neither of them requests while both "
        "link. Stop the other one, or remove the folder `keys` from the state folder of one of the two machines and "
        "pair that machine again: `cloud-gateway pair` there, `edgespec pair` here."
    ),
}
"""By the reason of the `Bye`; `worker`: its id."""


def notice_of(reason: str, worker: str) -> Notice | None:
    """What a worker with this id shows its admin after a signed `Bye`; None if there is nothing to do about it."""
    if reason in NOTICES:
        return Notice(reason, NOTICES[reason].format(worker=worker))
    return None


def shown(reason: str) -> str:
    """The label, or a constant in place of any other text."""
    if reason in REASONS:
        return reason
    return "another reason" if reason else "no reason"


def refusal_digest(hello: bytes, reason: str, text: str) -> bytes:
    return signing.digest("refuse", hello, reason.encode(), text.encode())


MAX_ROTATIONS = 4
"""Changes of key that the other side may have missed."""
GRACE_S = 90 * 86400.0
"""A worker follows a rotation for so long after it last linked. So the old key is of no use to a thief later than this
after its last use, whatever the thief signs; and it is longer than a term's break."""
Rotate = Callable[[bytes, bytes], object]
"""Stores that the worker of the first key has the second one."""
Rotations = Annotated[tuple[Rotation, ...], Meta(max_length=MAX_ROTATIONS)]


class GatewayRotation(Message, tag="gateway-rotation", frozen=True):
    """The gateway of the old key has the new key and this TLS key (SHA-256, as a pin); both keys signed that."""

    old_key: Bytes32
    new_key: Bytes32
    spki_hash: Bytes32
    old_signature: Bytes64
    new_signature: Bytes64


GatewayRotations = Annotated[tuple[GatewayRotation, ...], Meta(max_length=MAX_ROTATIONS)]


def gateway_rotation(old: SigningKey, new: SigningKey, spki_hash: bytes) -> GatewayRotation:
    """The statement that a gateway's identity `new`, with this TLS key, takes the place of `old`."""
    all_three = old.public + new.public + spki_hash
    kind = signing.GATEWAY_ROTATION
    return GatewayRotation(
        old.public,
        new.public,
        spki_hash,
        old.sign(kind, all_three),
        new.sign(kind, all_three),
    )


def successor(pin: Pin, seen_spki: bytes, rotations: Sequence[GatewayRotation], now: float) -> Pin:
    """What takes the place of `pin` at a machine with this TLS key, which shows these statements; `now`: Unix seconds.

    Raises RemoteProtocolError: `pin` where none of them is of the paired gateway, or they lead to another TLS key;
    `bad-signature`, `weak-key` or `rotation` where they are forged; `rotation` where the worker was away too long.
    """
    mine = [number for number, one in enumerate(rotations) if one.old_key == pin.gateway_key]
    if not mine or rotations[-1].spki_hash != seen_spki:
        raise RemoteProtocolError("pin", "the TLS key is not the one that was pinned at pairing")

    new = rotations[-1].new_key
    try:
        check_succession(rotations[mine[0] :], new)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(error.reason, f"a rotation of the gateway's identity is forged: {error}") from None
    if abs(now - pin.proven_at) > GRACE_S:
        raise RemoteProtocolError(
            "rotation",
            f"the gateway has rotated its identity, and this worker last linked more than {GRACE_S / 86400:.0f} days "
            "ago; ask the gateway's operator for a code and run `edgespec pair`",
        )

    return Pin(new, seen_spki, now)


def rotation(old: SigningKey, new: SigningKey) -> Rotation:
    """The statement that `new` takes the place of `old`."""
    both = old.public + new.public
    kind = signing.KEY_ROTATION
    return Rotation(old.public, new.public, old.sign(kind, both), new.sign(kind, both))


def up_to(rotations: Sequence[Rotation], key: bytes) -> tuple[Rotation, ...]:
    """The latest statements that lead to this key, oldest first; empty where none does."""
    ends = [number for number, one in enumerate(rotations, 1) if one.new_key == key]
    if ends:
        return tuple(rotations[: ends[-1]][-MAX_ROTATIONS:])
    return ()


def proof(signature: bytes, rotations: Sequence[Rotation]) -> Proof | RotatedProof:
    """The message with which a worker proves its key."""
    if rotations:
        return RotatedProof(signature, list(rotations))
    return Proof(signature)


def check_succession(rotations: Sequence[Rotation | GatewayRotation], key: bytes) -> None:
    """Raises RemoteProtocolError unless these lead, each signed by both its keys, to `key`: `rotation`, `weak-key` or
    `bad-signature`."""
    for one, following in zip(rotations, [*(other.old_key for other in rotations[1:]), key], strict=True):
        if one.new_key != following or one.new_key == one.old_key:
            raise RemoteProtocolError(
                "rotation",
                "the statements of rotated keys do not lead to the key that was proven",
            )
        kind = signing.KEY_ROTATION
        said = one.old_key + one.new_key
        if isinstance(one, GatewayRotation):
            kind = signing.GATEWAY_ROTATION
            said = said + one.spki_hash
        for public, signature in (
            (one.old_key, one.old_signature),
            (one.new_key, one.new_signature),
        ):
            signing.check_public_key(public)
            signing.verify(public, kind, said, signature)
