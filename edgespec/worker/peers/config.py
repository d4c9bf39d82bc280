"""The tables [peers] and [relay] of worker.toml, where units and reasons stand beside each key."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from edgespec.shared.address import DEFAULT_PEER_PORT
from edgespec.shared.fields import Host, Port
from edgespec.shared.settings import Section


class PeersSection(Section, frozen=True):
    """[peers]: other daemons on this campus."""

    listen: bool = False
    host: Host = "0.0.0.0"  # noqa: S104  peers are on other machines
    port: Port = DEFAULT_PEER_PORT
    discover: bool = True


class RelaySection(Section, frozen=True):
    """[relay]: the way to the gateway through another daemon, and for one."""

    use: bool = True
    offer: bool = False
    tunnels: Annotated[int, Meta(ge=1, le=64)] = 8
    kib_per_s: Annotated[int, Meta(ge=16, le=1_048_576)] = 1024
