"""TLS of the link: version 1.3 only, a self-signed certificate, and trust by the pinned public key alone.

The worker compares the SHA-256 of the certificate's SubjectPublicKeyInfo with the one from pairing. Names, issuers and
dates in the certificate are ignored, so a machine whose clock is wrong by years still connects. A gateway that has
rotated its identity shows the statements of that in an extension of its certificate, and they are judged before
anything is sent.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InternalError, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from edgespec.core.errors import UNDECODABLE, KeyStoreError, RemoteProtocolError
from edgespec.core.protocol.handshake import Pin
from edgespec.core.protocol.rotation import GatewayRotation, GatewayRotations, successor

UNREADABLE = (
    ValueError, InternalError, UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)  # fmt: skip
"""Exceptions of `cryptography` for certificates that OpenSSL takes, and that any machine may show."""
MakePem = Callable[[], bytes]
NOT_BEFORE = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
NOT_AFTER = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
"""RFC 5280 section 4.1.2.5: no well-defined expiration."""
ROTATIONS = x509.ObjectIdentifier("2.25.203118837520611862131527046105712046913")
"""The extension with `GatewayRotations` in msgpack; an identifier from a UUID needs no registration (X.667)."""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The gateway's TLS side: the PEM file with key and certificate, and the pin that workers store (32 bytes)."""

    pem: Path
    spki_hash: bytes

    def context(self) -> ssl.SSLContext:
        """The context of the gateway's server socket. Raises KeyStoreError if the file holds no usable pair."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # links last for days: resuming one saves nothing
        try:
            context.load_cert_chain(self.pem)
        except (ssl.SSLError, OSError) as error:
            raise KeyStoreError(
                f"{self.pem} holds no TLS key with its certificate ({error.strerror or error}); "
                "restore it from a backup, or remove it and pair every worker again."
            ) from None
        return context


def client_context() -> ssl.SSLContext:
    """For the worker's socket: no authority, name or date is checked; `peer_spki_hash` must be compared instead."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def peer_spki_hash(connection: ssl.SSLObject | ssl.SSLSocket | None) -> bytes:
    """SHA-256 of the public key that the server of this connection proved to hold (32 bytes).

    Raises RemoteProtocolError (reason `tls`) without TLS or with a certificate that cannot be read.
    """
    return _shown(connection)[1]


def trusted(pin: Pin, connection: ssl.SSLObject | ssl.SSLSocket | None) -> Pin:
    """The pin itself if the machine at the other end has its TLS key, or that of the gateway's rotated identity.

    Raises RemoteProtocolError (`tls`, and those of `successor`).
    """
    certificate, seen = _shown(connection)
    return pin if seen == pin.spki_hash else successor(pin, seen, rotations_in(certificate), time.time())


def _shown(connection: ssl.SSLObject | ssl.SSLSocket | None) -> tuple[x509.Certificate, bytes]:
    """The certificate of the machine at the other end, and its pin (32 bytes). Raises RemoteProtocolError (`tls`)."""
    der = connection.getpeercert(binary_form=True) if connection is not None else None
    try:
        if der:
            certificate = x509.load_der_x509_certificate(der)
            return certificate, spki_hash(certificate.public_key())
    except UNREADABLE:
        pass  # reported below
    raise RemoteProtocolError("tls", "the gateway shows no certificate that can be read")


def rotations_in(certificate: x509.Certificate) -> tuple[GatewayRotation, ...]:
    """The statements in a certificate, oldest first; none in one that has none, or none that can be read."""
    try:
        extension = certificate.extensions.get_extension_for_oid(ROTATIONS).value
        assert isinstance(extension, x509.UnrecognizedExtension)
        return msgspec.msgpack.decode(extension.value, type=GatewayRotations)
    except (*UNREADABLE, x509.ExtensionNotFound, *UNDECODABLE):
        return ()


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def spki_hash(key: CertificatePublicKeyTypes) -> bytes:
    """The pin of a TLS key (32 bytes): SHA-256 of its SubjectPublicKeyInfo (RFC 5280 section 4.1), as in RFC 7469."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).digest()


def new_identity(
    not_before: dt.datetime = NOT_BEFORE,
    not_after: dt.datetime = NOT_AFTER,
    key: ec.EllipticCurvePrivateKey | None = None,
    rotations: GatewayRotations = (),
) -> bytes:
    """A key, by default a fresh one, and its self-signed certificate with these statements, both in PEM."""
    key = key or new_key()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "edgespec gateway")])
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    if rotations:
        statements = x509.UnrecognizedExtension(ROTATIONS, msgspec.msgpack.encode(rotations))
        builder = builder.add_extension(statements, critical=False)
    certificate = builder.sign(key, SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + certificate.public_bytes(Encoding.PEM)


def certificate_spki(path: Path, pem: bytes) -> bytes:
    """The pin of the first certificate in `pem`, which was read from `path`. Raises KeyStoreError."""
    try:
        return spki_hash(x509.load_pem_x509_certificate(pem).public_key())
    except UNREADABLE:
        raise KeyStoreError(
            f"{path} holds no certificate; restore it from a backup, or remove it and pair every worker again."
        ) from None
