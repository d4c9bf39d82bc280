"""Decoders of what other machines send: link, pairing, certificates."""

from __future__ import annotations

import datetime as dt
import time
import warnings

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.utils import CryptographyDeprecationWarning

from edgespec.core.errors import AddressError, PairingError, RemoteProtocolError
from edgespec.core.pairing import messages as pairing
from edgespec.core.pairing.messages import parse_code
from edgespec.core.protocol import messages as m
from edgespec.core.protocol import signing
from edgespec.core.protocol.gateway_session import foreign_version
from edgespec.core.protocol.handshake import Pin, gateway_rotation
from edgespec.shared import tls
from edgespec.shared.address import parse_address, source_of
from tools.fuzz.decoder import MSGPACK, Decoder
from tools.fuzz.ends import FRAMES, GATEWAY_KEY, HANDSHAKE, PAIRING, SPKI, VOCABULARY, WORKER_KEY

TLS_KEY = ec.derive_private_key(7, ec.SECP256R1())
YEAR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ROTATED = gateway_rotation(GATEWAY_KEY, WORKER_KEY, tls.spki_hash(TLS_KEY.public_key()))
PIN = Pin(GATEWAY_KEY.public, SPKI, time.time())


def table() -> dict[str, Decoder]:
    """By name."""
    frames = [m.encode(one) for one in FRAMES]
    handshake = [m.encode(one) for one in HANDSHAKE]
    kind = signing.WORKER_FRAME
    sealed = [signing.seal(WORKER_KEY, kind, frame) for frame in frames]
    certificates = [_certificate(msgspec.msgpack.encode(one)) for one in ((ROTATED,), ())]
    wrong = RemoteProtocolError
    return {
        "frame": Decoder(_frame, frames, wrong, MSGPACK),
        "handshake": Decoder(_handshake, handshake, wrong, MSGPACK),
        "envelope": Decoder(lambda data: signing.unseal(WORKER_KEY.public, kind, data), sealed, wrong, cost=4),
        "signed content": Decoder(_signed, [one[signing.SIGNATURE_BYTES :] for one in sealed], wrong, cost=8),
        "pairing message": Decoder(pairing.decode_pairing, [m.encode(one) for one in PAIRING], wrong, MSGPACK),
        "pairing code": Decoder(
            lambda data: parse_code(data.decode(errors="replace")), [b"4821-copper-lantern-otter-7305"], PairingError,
            cost=4,
        ),
        "address": Decoder(_address, [b"gw.example:7443", b"wss://[fe80::1%eth0]:1/link", b"10.0.0.7"], AddressError),
        "certificate": Decoder(_shown, certificates, wrong, cost=8),
        "rotations in a certificate": Decoder(
            lambda data: tls.rotations_in(x509.load_der_x509_certificate(_certificate(data))),
            [msgspec.msgpack.encode((ROTATED,))], codec=MSGPACK, cost=20,
        ),
    }  # fmt: skip


def _frame(data: bytes) -> object:
    bodies = m.decoded(m.decode_frame, data, "a message").bodies
    for body in bodies:
        if isinstance(body, m.Tree):
            m.check_tree_shape(body, VOCABULARY)
            m.levels(body)
        elif isinstance(body, m.StepTimes):
            m.step_curve(body)
    if len(bodies) == 1:
        return bodies[0]

    return bodies


def _handshake(data: bytes) -> object:
    foreign_version(data[:64])
    return m.decoded(m.decode_handshake, data, "a message")


def _signed(content: bytes) -> bytes:
    """The content of an envelope by somebody who has the key."""
    frame = WORKER_KEY.sign(signing.WORKER_FRAME, content) + content
    return signing.unseal(WORKER_KEY.public, signing.WORKER_FRAME, frame)


def _address(data: bytes) -> object:
    address = parse_address(data.decode(errors="replace"))
    source_of(address.host)
    assert parse_address(str(address)) == address, "the text of an address names another one"
    return address, address.near, address.url("/link")


class _Shows:
    """A TLS connection, as far as its certificate is read."""

    def __init__(self, der: bytes) -> None:
        self._der = der

    def getpeercert(self, binary_form: bool) -> bytes:
        """What the other machine shows."""
        return self._der


def _shown(data: bytes) -> object:
    warnings.simplefilter("ignore", CryptographyDeprecationWarning)  # of odd certificates; logs show the kind alone
    return tls.trusted(PIN, _Shows(data))  # type: ignore[arg-type]


def _certificate(statements: bytes) -> bytes:
    """In DER, self-signed, with these bytes in the place of the rotations."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fuzz")])
    builder = x509.CertificateBuilder(name, name, TLS_KEY.public_key(), 1, YEAR, YEAR)
    builder = builder.add_extension(x509.UnrecognizedExtension(tls.ROTATIONS, statements), critical=False)
    return builder.sign(TLS_KEY, SHA256()).public_bytes(Encoding.DER)
