"""The keys of a machine that listens: its TLS key and certificate beside its identity, and how both are replaced."""

from __future__ import annotations

import datetime as dt
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from edgespec.core.errors import UNDECODABLE, KeyStoreError
from edgespec.core.protocol.handshake import GatewayRotations
from edgespec.shared.files import locked, read_private, write_private
from edgespec.shared.keystore import KeyStore
from edgespec.shared.tls import ROTATIONS, UNREADABLE, spki_hash

NOT_BEFORE = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
NOT_AFTER = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
"""RFC 5280 section 4.1.2.5: no well-defined expiration."""


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


def new_tls_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def new_identity(
    not_before: dt.datetime = NOT_BEFORE,
    not_after: dt.datetime = NOT_AFTER,
    key: ec.EllipticCurvePrivateKey | None = None,
    rotations: GatewayRotations = (),
) -> bytes:
    """A key, by default a fresh one, and its self-signed certificate with these statements, both in PEM."""
    key = key or new_tls_key()
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


class ServerKeyStore(KeyStore):
    """The keys of a gateway, or of a daemon that listens for peers."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir)
        if (self.folder / "rotated.json").exists():
            with locked(self.folder):
                self._finish()

    def tls_identity(self) -> ServerIdentity:
        """The gateway's TLS key and certificate, generated when they are first needed."""
        path, pem = self.read_or_make("tls.pem", new_identity)
        return ServerIdentity(path, certificate_spki(path, pem))

    def replace(self, identity: bytes, tls: bytes) -> None:
        """Stores another `identity.key` and `tls.pem`, both or neither, whenever this process ends.

        The caller has the lock of the folder.
        """
        both = {"identity.key": identity, "tls.pem": tls}
        write_private(self.folder / "rotated.json", msgspec.json.encode(both))
        self._finish()

    def _finish(self) -> None:
        """Replaces the files of a rotation one after the other, that of a process too which was ended meanwhile."""
        path = self.folder / "rotated.json"
        data = read_private(path)
        if data is None:
            return

        try:
            both = msgspec.json.decode(data, type=dict[Literal["identity.key", "tls.pem"], bytes])
        except UNDECODABLE as error:
            raise KeyStoreError(f"{path} is damaged ({error}); remove it and rotate again.") from None
        for name, pem in both.items():
            write_private(self.folder / name, pem)
        path.unlink()
