"""The gateway's half of `edgespec.parts.flood_guard`: bounds of its ports for each source, and of TLS records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloud_gateway.part import GatewayPart

if TYPE_CHECKING:
    from edgespec.shared.guards import Guards


def _guards() -> Guards:
    from edgespec.parts.flood_guard.guards import FloodGuards
    from edgespec.parts.flood_guard.sources import LINKS, PROXIED

    return FloodGuards(encrypted=LINKS, plain=PROXIED)


PART = GatewayPart("flood_guard", guards=_guards)
