"""A new identity and a new TLS key for a gateway."""

from __future__ import annotations

from cryptography import x509

from edgespec.core.errors import KeyStoreError
from edgespec.core.protocol.handshake import MAX_ROTATIONS, GatewayRotation, gateway_rotation
from edgespec.parts.rotate_keys.credentials import NAMES, check_writable
from edgespec.shared.files import locked
from edgespec.shared.keystore import new_key
from edgespec.shared.server_keys import ServerKeyStore, new_identity, new_tls_key
from edgespec.shared.tls import rotations_in, spki_hash


def rotate_gateway(store: ServerKeyStore) -> GatewayRotation:
    """Makes a new identity and a new TLS key.

    Returns the statement of both, which the present identity signs too and the new certificate has. A running gateway
    keeps the old keys until it starts again. Raises ConfigError if one of them is a credential, KeyStoreError.
    """
    for name in NAMES:
        check_writable(store, name)
        if not (store.folder / name).exists():
            raise KeyStoreError(
                f"{store.folder / name} does not exist, so there is nothing to rotate: start the gateway once."
            )

    old = store.identity()
    former = store.tls_identity().pem
    with locked(store.folder):
        pem, new = new_key()
        tls_key = new_tls_key()
        statement = gateway_rotation(old, new, spki_hash(tls_key.public_key()))

        # Workers that missed the latest rotations follow the whole chain.
        chain = rotations_in(x509.load_pem_x509_certificate(former.read_bytes()))
        if chain and chain[-1].new_key != old.public:
            chain = ()
        chain = (*chain, statement)[-MAX_ROTATIONS:]

        store.replace(pem, new_identity(key=tls_key, rotations=chain))

    return statement
