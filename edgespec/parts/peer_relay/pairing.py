"""Pairing with a gateway that is reached only through a peer."""

from __future__ import annotations

from edgespec.core.errors import EdgespecError, NoGatewayError
from edgespec.core.pairing.exchange import Party
from edgespec.core.pairing.messages import Code
from edgespec.parts.peer_relay.paired import PairedPeers
from edgespec.parts.peer_relay.settings import DEFAULT_PEER_PORT
from edgespec.parts.peer_relay.tunnel import Caller
from edgespec.shared.address import Address, parse_address
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateway, PairedGateways
from edgespec.worker.pair import pair

NO_PEER = "No peer is paired; pair with one first, `edgespec peers pair`."


async def pair_through_peers(store: KeyStore, name: str, code: Code) -> PairedGateway:
    """Pairs with the gateway that shows the code, through a peer that is linked to it: TLS goes through the relay, so
    that the peer learns neither code nor keys.

    Raises NoGatewayError (no peer is linked to a gateway), PairingError, KeyStoreError.
    """
    caller = Caller(store.identity())
    ways: list[Address] = []
    reports: list[str] = []
    try:
        for peer in PairedPeers(store.folder).all():
            if not peer.address:
                continue

            address = parse_address(peer.address, DEFAULT_PEER_PORT)
            try:
                said, _ = await caller.presence(peer, address)
            except EdgespecError as error:
                reports.append(str(error))
                continue

            reports.append(f"The peer {peer.name} is linked to {len(said.gateways)} gateways.")
            ways += [caller.way(peer, address, gateway) for gateway in said.gateways]

        if not ways:
            raise NoGatewayError(" ".join(reports) or NO_PEER)

        return await pair(code, Party(store.identity(), name), PairedGateways(store.folder).add, ways)
    finally:
        await caller.close()
