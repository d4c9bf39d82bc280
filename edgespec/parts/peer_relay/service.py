"""This daemon's place among its peers: what runs for it beside the link, and what `edgespec peers` shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import ifaddr

from edgespec.core.errors import EdgespecError, PairingError
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.signing import SigningKey
from edgespec.parts.peer_relay.addresses import PEER, PURPOSE
from edgespec.parts.peer_relay.paired import PairedPeer, PairedPeers
from edgespec.parts.peer_relay.port import PeerPort
from edgespec.parts.peer_relay.settings import PeersSection, RelaySection
from edgespec.parts.peer_relay.tunnel import Caller
from edgespec.shared.address import Address, Tunnelled, stored_address
from edgespec.shared.guards import PLAIN, Guards
from edgespec.shared.nearby import ALONE, Announced, Announcer, Finder, Nearby
from edgespec.shared.paired import PairedGateways
from edgespec.shared.pairing_listener import Invitation, PairingListener
from edgespec.shared.server_keys import ServerKeyStore

MAX_RELAYS = 3
"""Tried in one round of dialling, 250 ms apart; a relay that failed comes last in the next."""


class Routes:
    """The addresses of peers, and of one gateway through them."""

    def __init__(self, peers: PairedPeers, caller: Caller, gateway: Callable[[], bytes], finder: Finder | None) -> None:
        """`gateway`: its present Ed25519 key; `finder`: of peers."""
        self.gateway = gateway
        self._peers = peers
        self._caller = caller
        self._finder = finder
        self._failures: dict[bytes, int] = {}
        """Relay's key -> attempts that failed, and links that ended, through it."""

    def addresses(self, peer: PairedPeer) -> list[Address]:
        """Possible addresses of the peer: last reached, then announced."""
        addresses: list[Address] = []
        stored = stored_address(peer.address)
        if stored is not None:
            addresses.append(stored)
        if self._finder is not None:
            for machine in self._finder.found(key_id(peer.key)):
                addresses += machine.addresses

        return list(dict.fromkeys(addresses))

    def now(self) -> Sequence[Tunnelled]:
        """One address for each peer, those with the fewest failures first; after a failure the peer's next address."""
        ways: list[Tunnelled] = []
        for peer in sorted(self._peers.all(), key=lambda peer: self._failures.get(peer.key, 0)):
            addresses = self.addresses(peer)
            if addresses:
                ways.append(self._through(peer, addresses))

        return ways[:MAX_RELAYS]

    def _failed(self, relay: bytes) -> None:
        """The gateway was not reached through the relay with this key, or a link over it has ended. This is never
        forgotten, so that a relay that lets a link begin and then disturbs it comes after all others.
        """
        self._failures[relay] = self._failures.get(relay, 0) + 1

    def _through(self, peer: PairedPeer, where: Sequence[Address]) -> Tunnelled:
        address = where[self._failures.get(peer.key, 0) % len(where)]
        return self._caller.way(peer, address, self.gateway(), partial(self._failed, peer.key))


class PeerService:
    """Starts what the configuration asks for: the port, the announcement, the search for peers."""

    def __init__(
        self,
        store: ServerKeyStore,
        name: str,
        settings: PeersSection,
        relay: RelaySection,
        gateway: Callable[[], bytes],
        configured: str,
        linked: Callable[[], bool],
        guards: Guards = PLAIN,
        nearby: Nearby = ALONE,
    ) -> None:
        """`gateway`: the key that the gateway of this daemon has now, at the `configured` address or ""; `linked`:
        whether it is linked to it at present.
        """
        self._settings = settings
        self._relay = relay
        self._store = store
        self._key = store.identity()
        self._name = name
        self._gateway = gateway
        self._configured = configured
        self.peers = PairedPeers(store.folder)
        self._gateways = PairedGateways(store.folder)
        self._linked = linked
        self._guards = guards
        self._caller = Caller(self._key, guards)
        self._nearby = nearby
        self._finder: Finder | None = None
        if settings.discover and (settings.listen or self.peers.all()):
            self._finder = nearby.finder(PEER)
        self._announcer: Announcer | None = None
        self._desk: PairingListener | None = None
        self.port: PeerPort | None = None
        self.routes = Routes(self.peers, self._caller, gateway, self._finder)

    async def start(self) -> None:
        """Raises AddressError if the port for peers cannot be bound, KeyStoreError."""
        where = self._settings
        if self._finder is not None:
            await self._finder.start()
        if where.listen:
            tls = self._store.tls_identity()
            self._desk = desk(self._key, self._name, tls.spki_hash, self.peers)
            self.port = PeerPort(
                self._key,
                self._name,
                tls,
                self.peers,
                self._desk,
                self.addresses_of,
                self._drafting_for,
                self._relay,
                self._guards,
            )
            port = await self.port.start(where)
            if where.discover:
                machine = Announced(self._name, self._key.public, tls.spki_hash, where.host, port)
                self._announcer = self._nearby.announcer(PEER, machine)
            if self._announcer is not None:
                self._announcer.start()

    async def close(self) -> None:
        for part in (self._caller, self._announcer, self._finder, self.port):
            if part is not None:
                await part.close()

    def addresses_of(self, gateway: bytes) -> Sequence[Address]:
        """The address at which a paired gateway was authenticated last, and the admin's: never an announced one.

        A caller may not have met its present key yet.
        """
        known = self._gateways.with_key(gateway)
        if known is None:
            return []

        texts = [known.address]
        if known.key == self._gateway():
            texts.append(self._configured)

        addresses = [stored_address(text) for text in texts]
        return list(dict.fromkeys(address for address in addresses if address is not None))

    # --- commands ----------------------------------------------------------------------------------------------------

    async def invite(self) -> AsyncIterator[dict[str, object]]:
        """Opens a pairing window; a control handler, with the events of `PairingListener.pair`.

        Raises PairingError if this daemon does not listen.
        """
        if self._desk is None:
            raise PairingError(
                "This daemon does not listen for peers: set `peers.listen = true` in worker.toml and restart it, or "
                "pair the other way round, `edgespec peers invite` there and `edgespec peers pair` here."
            )

        async for event in self._desk.pair():
            yield event

    async def show(self) -> dict[str, object]:
        """The peers that are paired, or announce themselves: a control handler."""
        paired = await asyncio.gather(*(self._row(peer) for peer in self.peers.all()))
        relaying: list[str] = []
        forwarded_bytes = 0
        if self.port is not None:
            relaying = [self.peers.name_of(key) for key in self.port.tunnels]
            forwarded_bytes = self.port.forwarded_bytes

        return {
            "peers": [*paired, *self._strangers()],
            "relaying": relaying,
            "forwarded_bytes": forwarded_bytes,
        }

    def _strangers(self) -> list[dict[str, object]]:
        """The daemons that announce themselves and are not paired with this one."""
        if self._finder is None:
            return []

        known = {key_id(peer.key) for peer in self.peers.all()}
        known.add(key_id(self._key.public))
        rows: list[dict[str, object]] = []
        for machine in self._finder.found():
            if machine.key_hash not in known:
                rows.append(
                    {
                        "name": machine.name,
                        "id": machine.key_hash,
                        "trust": "not paired",
                        "address": str(machine.addresses[0]),
                    }
                )

        return rows

    async def _row(self, peer: PairedPeer) -> dict[str, object]:
        row: dict[str, object] = {"name": peer.name, "id": key_id(peer.key), "trust": "paired"}
        why = "it announces itself nowhere, and no address is stored"
        for address in self.routes.addresses(peer):
            try:
                said, from_host = await self._caller.presence(peer, address)
            except EdgespecError as error:
                why = str(error)
                continue

            self.peers.moved(peer.key, str(address))
            return row | {
                "address": str(address),
                "there": True,
                "interface": _interface(from_host),
                "relays": said.relays,
                "drafting_for": [self._gateway_name(key) for key in said.gateways],
            }

        if self.port is not None and peer.key in self.port.tunnels:  # it need not listen for that
            return row | {"there": True, "because": "it reaches its gateway through this machine"}

        return row | {"there": False, "because": why}

    def _gateway_name(self, key: bytes) -> str:
        known = self._gateways.get(key)
        if known is not None:
            return f"{known.name} ({key_id(key)})"
        return key_id(key)

    def _drafting_for(self) -> list[bytes]:
        if self._linked():
            return [self._gateway()]
        return []


def desk(key: SigningKey, name: str, spki_hash: bytes, peers: PairedPeers) -> PairingListener:
    """Stores peers that come to this machine; the address at which one listens is not known yet."""

    def add(key: bytes, name: str, min_version: int, groups: tuple[str, ...] | None) -> PairedPeer:
        return peers.add(key, b"", name, "", min_version)

    return PairingListener(key, name, spki_hash, add, Invitation("edgespec peers invite", "peer", PURPOSE))


def _interface(host: str) -> str:
    """The interface that has this address of this machine; "-" if none has."""
    for adapter in ifaddr.get_adapters():
        for configured in adapter.ips:
            address = configured.ip
            if not isinstance(address, str):
                address = address[0]
            if address == host:
                return adapter.nice_name

    return "-"
