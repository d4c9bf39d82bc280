"""Keys that were replaced by others, with the statements that a worker or gateway of any version shows."""

from __future__ import annotations

import msgspec

from edgespec.core.protocol.handshake import gateway_rotation, rotation
from edgespec.shared.files import locked, write_private
from edgespec.shared.keystore import KeyStore, new_key
from edgespec.shared.server_keys import ServerKeyStore, new_identity, new_tls_key
from edgespec.shared.tls import spki_hash


def renew(worker: KeyStore) -> None:
    """Gives a worker its first new key."""
    pem, new = new_key()
    statement = rotation(worker.identity(), new)
    with locked(worker.folder):
        write_private(worker.folder / "rotations.json", msgspec.json.encode([statement]))
        write_private(worker.folder / "identity.key", pem)


def renew_gateway(gateway: ServerKeyStore) -> bytes:
    """Gives a gateway its first new identity, with another TLS key; returns its public key."""
    pem, new = new_key()
    tls_key = new_tls_key()
    statement = gateway_rotation(gateway.identity(), new, spki_hash(tls_key.public_key()))
    with locked(gateway.folder):
        gateway.replace(pem, new_identity(key=tls_key, rotations=(statement,)))

    return new.public
