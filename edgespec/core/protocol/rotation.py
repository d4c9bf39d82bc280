"""A worker's change of key: a statement that the old and the new key sign, and what a gateway makes of it; pure.

A worker presents its latest statements with its proof. The gateway takes the one whose old key it has paired and
follows the rest to the key that was just proven. No nonce is needed: a statement is of use only to the owner of the new
key, and only while the old one is paired, which ends when it is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from msgspec import Meta

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol import signing
from edgespec.core.protocol.handshake import Lookup, Standing
from edgespec.core.protocol.messages import Proof, RotatedProof, Rotation
from edgespec.core.protocol.signing import SigningKey

MAX_ROTATIONS = 4
"""Changes of key that a gateway may have missed."""
Rotate = Callable[[bytes, bytes], object]
"""Stores that the worker of the first key has the second one."""
Rotations = Annotated[tuple[Rotation, ...], Meta(max_length=MAX_ROTATIONS)]


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


def standing_of(key: bytes, proven_by: Proof | RotatedProof, lookup: Lookup, rotate: Rotate) -> Standing:
    """Of a proven key; one that is not listed may be the successor of a listed one, whose place it then takes.

    Raises RemoteProtocolError where that one has not signed it.
    """
    standing = lookup(key)
    if standing != "unpaired" or isinstance(proven_by, Proof):
        return standing
    for number, one in enumerate(proven_by.rotations):
        standing = lookup(one.old_key)
        if standing != "unpaired":
            check_succession(proven_by.rotations[number:], key)
            if standing == "paired":
                rotate(one.old_key, key)
            break
    return standing


def check_succession(rotations: Sequence[Rotation], key: bytes) -> None:
    """Raises RemoteProtocolError unless these lead, each signed by both its keys, to `key`: `rotation`, `weak-key` or
    `bad-signature`."""
    for one, following in zip(rotations, [*(other.old_key for other in rotations[1:]), key], strict=True):
        if one.new_key != following or one.new_key == one.old_key:
            raise RemoteProtocolError(
                "rotation", "the statements of rotated keys do not lead to the key of this worker"
            )
        for public, signature in ((one.old_key, one.old_signature), (one.new_key, one.new_signature)):
            signing.check_public_key(public)
            signing.verify(public, signing.KEY_ROTATION, one.old_key + one.new_key, signature)
