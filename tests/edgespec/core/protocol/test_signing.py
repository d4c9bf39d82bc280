"""Envelopes: they open only under the kind they were signed for, unchanged, and their size reveals little."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.errors import LocalProtocolError, RemoteProtocolError
from edgespec.core.protocol import signing
from edgespec.core.protocol.messages import MAX_FRAME_BYTES
from edgespec.core.protocol.signing import HEADER_BYTES, SigningKey, bucket, check_public_key, seal, unseal, verify

KEY = SigningKey(bytes(range(32)))
KINDS = [
    signing.WORKER_FRAME,
    signing.GATEWAY_FRAME,
    signing.GATEWAY_CHALLENGE,
    signing.GATEWAY_REFUSE,
    signing.WORKER_PROOF,
]
SMALL_ORDER_KEYS = [
    bytes(32),
    b"\x01" + bytes(31),
    b"\xec" + b"\xff" * 30 + b"\x7f",
    bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
]


def resigned(rest: bytes, kind: str = signing.WORKER_FRAME) -> bytes:
    """A frame with a valid signature over any content."""
    return KEY.sign(kind, rest) + rest


def refused(frame: bytes, kind: str = signing.WORKER_FRAME, **limits: int) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        unseal(KEY.public, kind, frame, **limits)
    return caught.value.reason


@given(st.binary(max_size=3000))
def test_what_was_sealed_opens_and_its_size_is_a_bucket(payload: bytes) -> None:
    frame = seal(KEY, signing.WORKER_FRAME, payload)
    assert unseal(KEY.public, signing.WORKER_FRAME, frame) == payload
    assert len(frame) == bucket(HEADER_BYTES + len(payload))


@pytest.mark.claim("a-flipped-bit")
@pytest.mark.claim("a-frame-of-an-older-session-of-the-same-worker-is-refused")
@given(st.binary(max_size=300), st.data())
def test_any_flipped_bit_is_a_bad_signature(payload: bytes, data: st.DataObject) -> None:
    frame = bytearray(seal(KEY, signing.WORKER_FRAME, payload))
    bit = data.draw(st.integers(0, len(frame) * 8 - 1))
    frame[bit // 8] ^= 1 << bit % 8
    assert refused(bytes(frame)) == "bad-signature"


@pytest.mark.claim("a-frame-of-another-worker")
@pytest.mark.claim("a-signature-of-one-kind-is-worth-nothing-as-another")
@pytest.mark.parametrize("kind", KINDS)
def test_a_signature_of_another_kind_or_key_is_worth_nothing(kind: str) -> None:
    frame = seal(KEY, kind, b"x")
    for other in KINDS:
        if other != kind:
            assert refused(frame, other) == "bad-signature"
    assert refused(seal(SigningKey(bytes(32)), kind, b"x"), kind) == "bad-signature"


@pytest.mark.claim("padding-that-is-not-zero")
@pytest.mark.parametrize(
    "frame",
    [
        resigned(b"\0\x01a" + bytes(444) + b"\x01"),
        *(resigned(b"\0\x01a" + bytes(size - 3)) for size in (448 + 64, 448 + 512, 65536 - 64)),  # beyond its bucket
        *(resigned(length.to_bytes(2, "big") + bytes(446)) for length in (447, 448, 65535)),  # beyond the frame
        *map(bytes, (0, 1, 63, 64, 66, 511)),
    ],
)
def test_padding_must_be_zero_and_fill_a_bucket_although_it_is_signed(frame: bytes) -> None:
    assert refused(frame) == "padding"


def test_longer_payloads_than_agreed_are_refused() -> None:
    frame = seal(KEY, signing.WORKER_FRAME, bytes(1000))
    assert refused(frame, max_payload=100) == "oversize"
    assert refused(frame, max_payload=950) == "oversize"
    assert refused(bytes(MAX_FRAME_BYTES + 1)) == "oversize"


def test_the_longest_payload_fills_the_longest_frame_exactly() -> None:
    assert len(seal(KEY, signing.WORKER_FRAME, bytes(signing.MAX_PAYLOAD_BYTES))) == MAX_FRAME_BYTES
    with pytest.raises(LocalProtocolError):
        seal(KEY, signing.WORKER_FRAME, bytes(signing.MAX_PAYLOAD_BYTES + 1))


def test_buckets_are_few() -> None:
    sizes = {bucket(size) for size in range(1, MAX_FRAME_BYTES + 1)}
    assert sorted(sizes) == [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]


@pytest.mark.parametrize("key", [*SMALL_ORDER_KEYS, b"", bytes(31), b"\xff" * 32, b"\x02" + bytes(31)])
def test_a_key_of_small_order_or_none_at_all_is_refused(key: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        check_public_key(key)
    assert caught.value.reason == "weak-key"


@pytest.mark.claim("a-small-order-key-even-if-paired")
def test_a_small_order_key_verifies_nothing_even_unchecked() -> None:
    """The universal forgery (R = identity, S = 0) that the `cryptography` library accepts."""
    forged = SMALL_ORDER_KEYS[1] + bytes(32)
    with pytest.raises(RemoteProtocolError):
        verify(SMALL_ORDER_KEYS[1], signing.WORKER_FRAME, b"anything", forged)


@pytest.mark.claim("the-secret-half-is-never-shown")
def test_the_secret_half_is_never_shown() -> None:
    seed = hashlib.sha256(b"seed").digest()
    assert seed.hex()[:8] not in repr(SigningKey(seed))
    with pytest.raises(LocalProtocolError):
        SigningKey(b"short")
