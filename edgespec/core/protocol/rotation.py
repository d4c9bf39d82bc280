"""A change of key: a statement that the old and the new key sign, and what the other side makes of it; pure.

A worker presents its latest statements with its proof. The gateway takes the one whose old key it has paired and
follows the rest to the key that was just proven. No nonce is needed: a statement is of use only to the owner of the new
key, and only while the old one is paired, which ends when it is taken.

A gateway's statements name its TLS key too and stand in its TLS certificate, so that a worker can judge the machine
before it sends anything. The worker then takes the new key for this connection, and stores it once it is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from msgspec import Meta

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol import signing
from edgespec.core.protocol.handshake import Pin
from edgespec.core.protocol.messages import Bytes32, Bytes64, Message, Proof, RotatedProof, Rotation
from edgespec.core.protocol.signing import SigningKey

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
    return GatewayRotation(old.public, new.public, spki_hash, old.sign(kind, all_three), new.sign(kind, all_three))


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
    return tuple(rotations[: ends[-1]][-MAX_ROTATIONS:]) if ends else ()


def proof(signature: bytes, rotations: Sequence[Rotation]) -> Proof | RotatedProof:
    """The message with which a worker proves its key."""
    return RotatedProof(signature, list(rotations)) if rotations else Proof(signature)


def check_succession(rotations: Sequence[Rotation | GatewayRotation], key: bytes) -> None:
    """Raises RemoteProtocolError unless these lead, each signed by both its keys, to `key`: `rotation`, `weak-key` or
    `bad-signature`."""
    for one, following in zip(rotations, [*(other.old_key for other in rotations[1:]), key], strict=True):
        if one.new_key != following or one.new_key == one.old_key:
            raise RemoteProtocolError(
                "rotation", "the statements of rotated keys do not lead to the key that was proven"
            )
        kind, said = signing.KEY_ROTATION, one.old_key + one.new_key
        if isinstance(one, GatewayRotation):
            kind, said = signing.GATEWAY_ROTATION, said + one.spki_hash
        for public, signature in ((one.old_key, one.old_signature), (one.new_key, one.new_signature)):
            signing.check_public_key(public)
            signing.verify(public, kind, said, signature)
