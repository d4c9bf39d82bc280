"""This machine's own keys: the Ed25519 identity of either role, and the gateway's TLS key and certificate.

    STATE/keys/               0700
        identity.key          0600  Ed25519 private key, PEM (PKCS #8)
        tls.pem               0600  ECDSA P-256 private key and self-signed certificate, PEM (gateway only), with the
                                    statements of the latest changes of the gateway's identity
        rotated.json          0600  the new contents of both while they are replaced (gateway only)
        rotations.json        0600  statements of the latest changes of identity.key (worker only)
        gateways.json         0600  paired gateways (worker only, shared/paired.py)
        workers.json          0600  paired workers (gateway only, links/paired.py)

`identity.key` and `tls.pem` may also come from systemd's LoadCredential=, which has precedence and is never written.
Commands in a shell see no credentials.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from cryptography.exceptions import InternalError, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from edgespec.core.errors import UNDECODABLE, KeyStoreError
from edgespec.core.protocol.handshake import Rotations, up_to
from edgespec.core.protocol.messages import Rotation
from edgespec.core.protocol.signing import SigningKey
from edgespec.shared import folders
from edgespec.shared.files import locked, private_folder, read_private, write_private


class KeyStore:
    """The keys below one state folder. Every method raises KeyStoreError if a file cannot be read or written."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "keys"
        given = os.environ.get("CREDENTIALS_DIRECTORY", "")
        self._credentials = Path(given) if given else None
        with contextlib.suppress(OSError):  # the next line says what is wrong
            state_dir.mkdir(mode=0o700, parents=True)  # a gateway locks it, which other users are not to do
        private_folder(self.folder)

    def identity(self) -> SigningKey:
        """This machine's identity, generated when it is first needed."""
        path, pem = self.read_or_make("identity.key", _new_identity)
        try:
            private = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, InternalError, UnsupportedAlgorithm):
            private = None
        if not isinstance(private, Ed25519PrivateKey):
            raise KeyStoreError(
                f"{path} is not an Ed25519 private key in PEM; restore it from a backup, or remove it and pair again."
            )

        return SigningKey(private.private_bytes_raw())

    def rotations(self) -> tuple[Rotation, ...]:
        """The statements that lead to the identity, oldest first."""
        return self.rotations_to(self.identity().public)

    def rotations_to(self, key: bytes) -> tuple[Rotation, ...]:
        """The stored statements that lead to this key, oldest first; empty if none does."""
        return up_to(self._rotations(), key)

    def credential(self, name: str) -> Path | None:
        """The credential of this name; None if there is none, or this process sees none."""
        if self._credentials is None:
            return None

        path = self._credentials / name
        if folders.exists(path):
            return path

        return None

    def _rotations(self) -> tuple[Rotation, ...]:
        path = self.folder / "rotations.json"
        try:
            return msgspec.json.decode(read_private(path) or b"[]", type=Rotations)
        except UNDECODABLE as error:
            raise KeyStoreError(f"{path} is damaged ({error}); remove it and pair again.") from None

    def read_or_make(self, name: str, make: Callable[[], bytes]) -> tuple[Path, bytes]:
        credential = self.credential(name)
        if credential is not None:
            try:
                # systemd guards this folder itself, by access lists that show up as group permissions
                return credential, credential.read_bytes()
            except OSError as error:
                raise KeyStoreError(
                    f"The credential {credential} cannot be read ({error.strerror or error})."
                ) from None
        path = self.folder / name
        with locked(self.folder):  # so that two processes that start together make one key
            pem = read_private(path)
            if pem is None:
                pem = make()
                write_private(path, pem)

        return path, pem


def new_key() -> tuple[bytes, SigningKey]:
    """A fresh identity, as PEM and as a key."""
    pem = _new_identity()
    return pem, SigningKey(load_pem_private_key(pem, password=None).private_bytes_raw())  # type: ignore[union-attr]


def _new_identity() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
