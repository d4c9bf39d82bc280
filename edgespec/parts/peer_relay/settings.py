"""The tables [peers] and [relay] of worker.toml; units and reasons stand in the file beside this one."""

from __future__ import annotations

from collections.abc import Mapping

from edgespec.shared.fields import Host, Port
from edgespec.shared.settings import Removed, Section

DEFAULT_PEER_PORT = 7444
"""Default of `peers.port`, on which a daemon listens for its peers."""
TUNNELS = 8
"""Peers relayed at once: a relay serves the machines of one room, of which few lack a way of their own."""
KIB_PER_S = 1024
"""KiB forwarded each second, for all peers and both directions together: some hundred workers' frames, and little
beside what a campus network carries."""


class PeersSection(Section, frozen=True):
    listen: bool = False
    host: Host = "0.0.0.0"  # noqa: S104  peers are on other machines
    port: Port = DEFAULT_PEER_PORT
    discover: bool = True


class RelaySection(Section, frozen=True):
    """[relay]: the way to the gateway through another daemon, and for one."""

    use: bool = True
    offer: bool = False


REMOVED: Mapping[str, Removed] = {
    "relay.tunnels": Removed(f"a relay takes {TUNNELS} peers at once.", (8,)),
    "relay.kib_per_s": Removed(f"a relay forwards at most {KIB_PER_S} KiB a second.", (1024,)),
}
"""Keys of earlier versions, each with what holds instead."""
