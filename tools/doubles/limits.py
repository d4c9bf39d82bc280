"""The limits of requests, keys and ports as they are configured by default, with changes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from msgspec.structs import replace as replaced

from cloud_gateway.api import listener
from cloud_gateway.api.generation import Limits
from cloud_gateway.api.listener import ClientTimes
from cloud_gateway.core.limits.visits import KeyLimits
from cloud_gateway.links import server
from cloud_gateway.process.config import GatewaySettings
from edgespec.shared.guards import PortBounds

SETTINGS = GatewaySettings()
TIMES = ClientTimes()


def request_limits(**changes: Any) -> Limits:
    """Changes are fields of `Limits`, of its `key` or of the table [api]."""
    limits = Limits.of(SETTINGS.api, SETTINGS.target.slots)
    own = {field.name: changes.pop(field.name) for field in fields(Limits) if field.name in changes}
    key = {field.name: changes.pop(field.name) for field in fields(KeyLimits) if field.name in changes}
    return replace(limits, api=replaced(limits.api, **changes), key=replace(limits.key, **key), **own)


def link_bounds() -> PortBounds:
    """Those of a link port with all its descriptors."""
    return server.link_bounds(server.CONNECTIONS)


def api_bounds() -> PortBounds:
    """Those of an API port with all its descriptors."""
    return listener.api_bounds(listener.CONNECTIONS)
