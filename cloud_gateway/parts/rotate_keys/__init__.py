"""Rotation of the gateway's keys: `cloud-gateway identity rotate`.

Workers follow the statement of it, which stands in the new TLS certificate, whether or not they have the part.
"""

from __future__ import annotations

from cloud_gateway.part import Foundation, GatewayPart, Running
from cloud_gateway.parts.rotate_keys.verb import IdentityVerb


def _start(gateway: Foundation) -> Running:
    from edgespec.parts.rotate_keys.credentials import note_credentials
    from edgespec.shared.keystore import KeyStore

    note_credentials(KeyStore(gateway.state_dir))
    return Running()


PART = GatewayPart("rotate_keys", verbs=[IdentityVerb()], start=_start)
