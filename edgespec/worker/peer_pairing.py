"""Pairs this daemon with a peer that shows a code, and with a gateway through its peers."""

from __future__ import annotations

from edgespec.core.errors import EdgespecError, NoGatewayError
from edgespec.core.pairing.exchange import Party
from edgespec.core.pairing.messages import Code
from edgespec.shared import mdns
from edgespec.shared.address import DEFAULT_PEER_PORT, Address, parse_address
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateway, PairedGateways, PairedPeer, PairedPeers
from edgespec.worker.discovery import Browser
from edgespec.worker.pair import pair, pair_by_code
from edgespec.worker.peers.call import Caller


async def pair_peer(store: KeyStore, name: str, code: Code, address: Address | None) -> PairedPeer:
    """`name`: this machine's. Raises NoGatewayError (nobody is there), PairingError, KeyStoreError."""
    me = Party(store.identity(), name, purpose="peer")
    return await pair_by_code(PairedPeers(store.folder), code, me, address, lambda: Browser(kind=mdns.PEER))


async def pair_through_peers(store: KeyStore, name: str, code: Code) -> PairedGateway:
    """Pairs with the gateway that shows the code, through a peer that is linked to it: TLS goes through the relay, so
    that the peer learns neither code nor keys.

    Raises NoGatewayError (no peer is linked to a gateway), PairingError, KeyStoreError.
    """
    caller = Caller(store.identity())
    ways: list[Address] = []
    silent = ["No peer is paired; pair with one first, `edgespec peers pair`."]
    try:
        for peer in PairedPeers(store.folder).all():
            address = parse_address(peer.address, DEFAULT_PEER_PORT) if peer.address else None
            if address is None:
                continue
            try:
                said, _ = await caller.presence(peer, address)
            except EdgespecError as error:
                silent.append(str(error))
                continue
            silent.append(f"The peer {peer.name} is linked to {len(said.gateways)} gateways.")
            ways += [caller.way(peer, address, gateway) for gateway in said.gateways]
        if not ways:
            raise NoGatewayError(" ".join(silent[1:] or silent))
        return await pair(ways, code, store.identity(), name, PairedGateways(store.folder))
    finally:
        await caller.close()
