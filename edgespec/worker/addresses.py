"""The possible addresses of the paired gateway. All are hints; the pinned TLS key decides (edgespec/worker/dial.py)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from edgespec.core.errors import AddressError, KeyStoreError
from edgespec.core.protocol.names import key_id
from edgespec.shared.address import Address, Relayed, parse_address
from edgespec.shared.paired import PairedGateways
from edgespec.worker.discovery import Browser
from edgespec.worker.link import MAX_ADDRESSES
from edgespec.worker.peers.optional import Peers

log = logging.getLogger("edgespec.worker.addresses")

RELAYED = 2
"""Places for ways through peers in a round of `MAX_ADDRESSES`: two, so that one relay that is gone delays nothing."""


class GatewayAddresses:
    """The addresses of one gateway, best first: last reached, configured, announced by mDNS."""

    def __init__(
        self,
        gateways: PairedGateways,
        key: bytes,
        configured: str,
        browser: Browser | None,
        through_peers: Peers | None = None,
    ) -> None:
        """`key`: the gateway's Ed25519 key; `configured`: as text, or "" for none."""
        self._ways = through_peers
        self.key = key
        self._gateways, self._configured, self._browser = gateways, configured, browser
        self._tasks: set[asyncio.Task[None]] = set()

    async def now(self) -> Sequence[Address]:
        """The current addresses: those from mDNS after the known ones, since anybody on the network can announce any
        address, and ways through peers last, in places of a round that are theirs.
        """
        known = [self._last_good(), self._configured]
        found = self._browser.found(key_id(self.key)) if self._browser is not None else []
        announced = [address for one in found for address in one.addresses]
        ways = list(await self._ways.now()) if self._ways is not None else []
        direct = list(dict.fromkeys([*filter(None, map(_parsed, known)), *announced]))
        return [*direct[: MAX_ADDRESSES - min(len(ways), RELAYED)], *ways, *direct[MAX_ADDRESSES:]]

    def failed(self, address: Address) -> None:
        """Records that the gateway was not reached there, or that a link through a peer has ended."""
        if isinstance(address, Relayed):
            if self._ways is not None:
                self._ways.failed(address)
            return
        if self._browser is not None:
            self._browser.failed(address)

    def reached(self, address: Address) -> None:
        """Records that the gateway is linked there now: from now on this address is tried first.

        A way through a peer is not stored: a direct one is always tried before.
        """
        where = "" if isinstance(address, Relayed) else str(address)
        task = asyncio.create_task(asyncio.to_thread(self._remember, where))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _last_good(self) -> str:
        try:
            gateway = self._gateways.get(self.key)
        except KeyStoreError as error:  # damaged while the worker runs, which keeps its pin
            log.warning("%s", error)
            return ""
        return gateway.address if gateway is not None else ""

    def _remember(self, address: str) -> None:
        try:
            self._gateways.reached(self.key, address)
        except KeyStoreError as error:  # the next start begins with the former address
            log.warning("%s", error)


def _parsed(text: str) -> Address | None:
    """The address, or None for an empty one or one that an earlier version stored in another form."""
    try:
        return parse_address(text) if text else None
    except AddressError:
        return None
