"""Signed envelopes: Ed25519 (RFC 8032) under one domain string per kind, padded to a few sizes (docs/protocol.md).

    envelope  =  signature(64) ‖ length(2, big-endian) ‖ payload ‖ zeros up to the bucket
    signed    =  b"edgespec/2 " + kind + b"\\0" + everything after the signature

The kind follows from the direction and the state of the link and is never read from the wire. PyNaCl signs and
verifies in about two thirds of the time that `cryptography` takes, and detects small-order public keys.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from nacl.bindings import (
    crypto_core_ed25519_is_valid_point,
    crypto_sign,
    crypto_sign_open,
    crypto_sign_seed_keypair,
)
from nacl.exceptions import BadSignatureError

from edgespec.core.errors import LocalProtocolError, RemoteProtocolError
from edgespec.core.protocol.messages import MAX_FRAME_BYTES, PROTOCOL

WORKER_FRAME = "worker-frame"
GATEWAY_FRAME = "gateway-frame"
GATEWAY_CHALLENGE = "gateway-challenge"
GATEWAY_REFUSE = "gateway-refuse"
WORKER_PROOF = "worker-proof"


class StoredKind(str):
    """A kind whose statements are kept in files and outlive a version of the wire: their domain stays the first one's.

    Such a kind and one of the wire never have the same text.
    """

    __slots__ = ()


KEY_ROTATION = StoredKind("key-rotation")
GATEWAY_ROTATION = StoredKind("gateway-rotation")

SIGNATURE_BYTES = 64
HEADER_BYTES = SIGNATURE_BYTES + 2
MIN_FRAME_BYTES = 512
"""The smallest bucket: a ping, a pause and a commit of up to 65 tokens, the most of a round, look alike."""
MAX_PAYLOAD_BYTES = MAX_FRAME_BYTES - HEADER_BYTES


class SigningKey:
    """An Ed25519 key pair. `public` is 32 bytes; the secret half is never shown."""

    __slots__ = ("_secret", "public")

    def __init__(self, seed: bytes) -> None:
        """`seed`: 32 bytes from a cryptographic source; raises LocalProtocolError for any other length."""
        if len(seed) != 32:
            raise LocalProtocolError(f"An Ed25519 seed has 32 bytes, not {len(seed)}.")
        self.public, self._secret = crypto_sign_seed_keypair(seed)

    def __repr__(self) -> str:
        return f"SigningKey(public={self.public.hex()[:16]}…)"

    def sign(self, kind: str, data: bytes) -> bytes:
        """The signature (64 bytes) over `data` under the domain of `kind`."""
        return crypto_sign(_domain(kind) + data, self._secret)[:SIGNATURE_BYTES]


def verify(public: bytes, kind: str, data: bytes, signature: bytes) -> None:
    """Raises RemoteProtocolError (`bad-signature`) unless `public` signed `data` under the domain of `kind`."""
    try:
        crypto_sign_open(signature + _domain(kind) + data, public)
    except BadSignatureError:
        raise RemoteProtocolError("bad-signature", f"the signature of a {kind} does not verify") from None


def check_public_key(public: bytes) -> None:
    """Raises RemoteProtocolError (`weak-key`) for a key of small order, off the curve or not canonical.

    A small-order key would verify signatures that nobody made.
    """
    if len(public) != 32 or not crypto_core_ed25519_is_valid_point(public):
        raise RemoteProtocolError("weak-key", "the public key is not a valid Ed25519 key of full order")


def bucket(size: int) -> int:
    """The padded size of a frame of `size` bytes: the next power of two, at least 512.

    Otherwise sizes would show how many tokens were drafted or accepted, which identifies prompts.
    """
    return max(MIN_FRAME_BYTES, 1 << (size - 1).bit_length())


def seal(key: SigningKey, kind: str, payload: bytes) -> bytes:
    """The signed, padded envelope of a payload of at most `MAX_PAYLOAD_BYTES`; raises LocalProtocolError beyond."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise LocalProtocolError(f"A {kind} holds at most {MAX_PAYLOAD_BYTES} bytes, not {len(payload)}.")
    size = HEADER_BYTES + len(payload)
    rest = b"".join((len(payload).to_bytes(2, "big"), payload, bytes(bucket(size) - size)))
    return key.sign(kind, rest) + rest


def unseal(public: bytes, kind: str, frame: bytes, max_payload: int = MAX_PAYLOAD_BYTES) -> bytes:
    """The payload of an envelope, after a check of its size, its signature and then its padding.

    Raises RemoteProtocolError: `oversize`, `bad-signature` or `padding`.
    """
    if len(frame) > bucket(HEADER_BYTES + max_payload):
        raise RemoteProtocolError("oversize", f"a {kind} of {len(frame)} bytes is longer than allowed")
    if len(frame) < MIN_FRAME_BYTES:
        raise RemoteProtocolError(
            "padding",
            f"a {kind} of {len(frame)} bytes is shorter than the smallest bucket",
        )

    rest = frame[SIGNATURE_BYTES:]
    verify(public, kind, rest, frame[:SIGNATURE_BYTES])
    end = 2 + int.from_bytes(rest[:2], "big")
    if len(frame) != bucket(SIGNATURE_BYTES + end):
        raise RemoteProtocolError("padding", f"a {kind} of {len(frame)} bytes is not padded to its bucket")
    if rest.count(0, end) != len(rest) - end:
        raise RemoteProtocolError("padding", f"the padding of a {kind} is not zero")
    if end - 2 > max_payload:
        raise RemoteProtocolError(
            "oversize",
            f"the payload of a {kind} has {end - 2} bytes, more than {max_payload}",
        )

    return rest[2:end]


def digest(domain: str, *fields: bytes) -> bytes:
    """SHA-256 over the domain and all fields, each preceded by its length: a transcript that both sides sign."""
    sha = hashlib.sha256(_domain(domain))
    for field in fields:
        sha.update(len(field).to_bytes(4, "big") + field)
    return sha.digest()


@lru_cache(maxsize=None, typed=True)
def _domain(kind: str) -> bytes:
    version = PROTOCOL
    if isinstance(kind, StoredKind):
        version = "edgespec/1"
    return f"{version} {kind}\0".encode()
