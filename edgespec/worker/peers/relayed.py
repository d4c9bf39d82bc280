"""The address of a gateway behind a peer: a connection to it begins with a tunnel through that peer."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from edgespec.shared.address import Address
from edgespec.shared.paired import PairedPeer
from edgespec.worker.peers.call import Caller


@dataclass(frozen=True, slots=True)
class Relayed(Address):
    """`host` and `port` are the relay's; `connect` opens a tunnel to the gateway."""

    peer: str = ""
    """The relay's name."""
    key: bytes = b""
    """The relay's Ed25519 key."""
    connect: Callable[[], Awaitable[socket.socket]] = field(compare=False, kw_only=True)
    """A stream socket whose other end is the gateway. Raises OSError, RemoteProtocolError, PeerUnavailable."""

    def __str__(self) -> str:
        return f"{Address(self.host, self.port)} (relay {self.peer})"

    @property
    def near(self) -> bool:
        """Always: the tunnel is there already, and no proxy is used."""
        return True


def way(caller: Caller, peer: PairedPeer, address: Address, gateway: bytes) -> Relayed:
    """The gateway with this key, through the peer at this address."""
    connect = partial(caller.tunnel, peer, address, gateway)
    return Relayed(address.host, address.port, peer.name, peer.key, connect=connect)
