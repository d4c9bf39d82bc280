"""This machine's own keys: the Ed25519 identity of either role, and the gateway's TLS key and certificate.

    STATE/keys/               0700
        identity.key          0600  Ed25519 private key, PEM (PKCS #8)
        tls.pem               0600  ECDSA P-256 private key and self-signed certificate, PEM (gateway only)
        rotations.json        0600  statements of the latest changes of identity.key (worker only)
        gateways.json         0600  paired gateways (worker only, paired.py)
        workers.json          0600  paired workers (gateway only, paired.py)

`identity.key` and `tls.pem` may also come from systemd's LoadCredential=, which has precedence and is never written.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from edgespec.core.errors import KeyStoreError
from edgespec.core.protocol.messages import Rotation
from edgespec.core.protocol.rotation import MAX_ROTATIONS, Rotations, rotation, up_to
from edgespec.core.protocol.signing import SigningKey
from edgespec.shared import tls
from edgespec.shared.files import locked, private_folder, read_private, write_private


class KeyStore:
    """The keys below one state folder. Every method raises KeyStoreError where a file cannot be read or written."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "keys"
        given = os.environ.get("CREDENTIALS_DIRECTORY", "")
        self._credentials = Path(given) if given else None
        private_folder(self.folder)

    def identity(self) -> SigningKey:
        """This machine's identity, generated when it is first needed."""
        path, pem = self._read_or_make("identity.key", _new_identity)
        try:
            private = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            private = None
        if not isinstance(private, Ed25519PrivateKey):
            raise KeyStoreError(
                f"{path} is not an Ed25519 private key in PEM; restore it from a backup, or remove it and pair again."
            )
        return SigningKey(private.private_bytes_raw())

    def rotations(self) -> tuple[Rotation, ...]:
        """The statements that lead to the identity, oldest first."""
        return up_to(self._rotations(), self.identity().public)

    def rotate(self) -> SigningKey:
        """Makes a new identity, and a statement of it that the present one signs too; returns the new one.

        The statement is written first: without the new key it is of no effect.
        """
        if self._credentials is not None and (self._credentials / "identity.key").exists():
            raise KeyStoreError(
                f"{self._credentials / 'identity.key'} is a credential, which is never written; remove LoadCredential= "
                "from the unit, or pair again with another key."
            )
        old = self.identity()
        with locked(self.folder):
            pem = _new_identity()
            new = SigningKey(load_pem_private_key(pem, password=None).private_bytes_raw())  # type: ignore[union-attr]
            chain = (*up_to(self._rotations(), old.public), rotation(old, new))[-MAX_ROTATIONS:]
            write_private(self.folder / "rotations.json", msgspec.json.encode(chain))
            write_private(self.folder / "identity.key", pem)
        return new

    def _rotations(self) -> tuple[Rotation, ...]:
        path = self.folder / "rotations.json"
        try:
            return msgspec.json.decode(read_private(path) or b"[]", type=Rotations)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise KeyStoreError(f"{path} is damaged ({error}); remove it and pair again.") from None

    def tls_identity(self) -> tls.ServerIdentity:
        """The gateway's TLS key and certificate, generated when they are first needed."""
        path, pem = self._read_or_make("tls.pem", tls.new_identity)
        return tls.ServerIdentity(path, tls.certificate_spki(path, pem))

    def _read_or_make(self, name: str, make: tls.MakePem) -> tuple[Path, bytes]:
        if self._credentials is not None:
            path = self._credentials / name
            try:
                # systemd guards this folder itself, by access lists that show up as group permissions
                return path, path.read_bytes()
            except FileNotFoundError:
                pass
            except OSError as error:
                raise KeyStoreError(f"The credential {path} cannot be read ({error.strerror or error}).") from None
        path = self.folder / name
        with locked(self.folder):  # so that two processes that start together make one key
            pem = read_private(path)
            if pem is None:
                pem = make()
                write_private(path, pem)
        return path, pem


def _new_identity() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
