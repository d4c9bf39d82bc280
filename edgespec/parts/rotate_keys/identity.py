"""A new identity for a worker."""

from __future__ import annotations

import msgspec

from edgespec.core.protocol.handshake import MAX_ROTATIONS, rotation
from edgespec.core.protocol.messages import Rotation
from edgespec.parts.rotate_keys.credentials import check_writable
from edgespec.shared.files import locked, write_private
from edgespec.shared.keystore import KeyStore, new_key


def rotate_identity(store: KeyStore) -> Rotation:
    """Makes a new identity; returns the statement of it, which the present one signs too.

    Raises ConfigError if the identity is a credential, KeyStoreError.
    """
    check_writable(store, "identity.key")
    old = store.identity()
    with locked(store.folder):
        pem, new = new_key()
        statement = rotation(old, new)
        chain = (*store.rotations_to(old.public), statement)[-MAX_ROTATIONS:]

        # The statement is written first: without the new key it is of no effect.
        write_private(store.folder / "rotations.json", msgspec.json.encode(chain))
        write_private(store.folder / "identity.key", pem)

    return statement
