"""The ways to the gateway through peers, best first, and the addresses of peers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from edgespec.core.errors import AddressError
from edgespec.core.protocol.names import key_id
from edgespec.shared.address import Address, Relayed, parse_address
from edgespec.shared.paired import PairedPeer, PairedPeers
from edgespec.worker.discovery import Browser
from edgespec.worker.peers.call import Caller

MAX_RELAYS = 3
"""Tried in one round of dialling, 250 ms apart; a relay that failed comes last in the next."""


class Routes:
    """The addresses of peers, and of one gateway through them."""

    def __init__(self, peers: PairedPeers, caller: Caller, gateway: bytes, browser: Browser | None) -> None:
        """`gateway`: its Ed25519 key; `browser`: announcements of peers."""
        self.gateway = gateway
        self._peers, self._caller, self._browser = peers, caller, browser
        self._failures: dict[bytes, int] = {}
        """Relay's key -> attempts that failed, and links that ended, through it."""

    def addresses(self, peer: PairedPeer) -> list[Address]:
        """Possible addresses of the peer: last reached, then announced."""
        known: list[Address] = []
        with contextlib.suppress(AddressError):  # stored by an earlier version
            known = [parse_address(peer.address)] if peer.address else []
        found = self._browser.found(key_id(peer.key)) if self._browser is not None else []
        return list(dict.fromkeys([*known, *(address for one in found for address in one.addresses)]))

    async def now(self) -> Sequence[Relayed]:
        """One address for each peer, those with the fewest failures first; after a failure the peer's next address."""
        peers = sorted(self._peers.all(), key=lambda peer: self._failures.get(peer.key, 0))
        ways = [self._through(peer, where) for peer in peers if (where := self.addresses(peer))]
        return ways[:MAX_RELAYS]

    def failed(self, way: Relayed) -> None:
        """The gateway was not reached that way, or a link over it has ended. This is never forgotten, so that a relay
        that lets a link begin and then disturbs it comes after all others.
        """
        self._failures[way.key] = self._failures.get(way.key, 0) + 1

    def _through(self, peer: PairedPeer, where: Sequence[Address]) -> Relayed:
        address = where[self._failures.get(peer.key, 0) % len(where)]
        return self._caller.way(peer, address, self.gateway)
