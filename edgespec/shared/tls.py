"""TLS of the link: version 1.3 only, a self-signed certificate, and trust by the pinned public key alone.

The worker compares the SHA-256 of the certificate's SubjectPublicKeyInfo with the one from pairing. Names, issuers and
dates in the certificate are ignored, so a machine whose clock is wrong by years still connects. A gateway that has
rotated its identity shows the statements of that in an extension of its certificate, and they are judged before
anything is sent.
"""

from __future__ import annotations

import hashlib
import ssl
import time

import msgspec
from cryptography import x509
from cryptography.exceptions import InternalError, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from edgespec.core.errors import UNDECODABLE, RemoteProtocolError
from edgespec.core.protocol.handshake import (
    GatewayRotation,
    GatewayRotations,
    Pin,
    successor,
)

UNREADABLE = (
    ValueError, InternalError, UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)  # fmt: skip
"""Exceptions of `cryptography` for certificates that OpenSSL takes, and that any machine may show."""
ROTATIONS = x509.ObjectIdentifier("2.25.203118837520611862131527046105712046913")
"""The extension with `GatewayRotations` in msgpack; an identifier from a UUID needs no registration (X.667)."""


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
    if seen == pin.spki_hash:
        return pin
    return successor(pin, seen, rotations_in(certificate), time.time())


def _shown(
    connection: ssl.SSLObject | ssl.SSLSocket | None,
) -> tuple[x509.Certificate, bytes]:
    """The certificate of the machine at the other end, and its pin (32 bytes). Raises RemoteProtocolError (`tls`)."""
    if connection is not None:
        der = connection.getpeercert(binary_form=True)
    else:
        der = None
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


def spki_hash(key: CertificatePublicKeyTypes) -> bytes:
    """The pin of a TLS key (32 bytes): SHA-256 of its SubjectPublicKeyInfo (RFC 5280 section 4.1), as in RFC 7469."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).digest()
