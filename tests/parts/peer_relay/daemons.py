"""Daemons that are peers of one another, on loopback."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from edgespec.core.pairing.exchange import Party
from edgespec.core.pairing.messages import Code
from edgespec.core.protocol.signing import SigningKey
from edgespec.parts.peer_relay.addresses import PEER_PROTOCOL
from edgespec.parts.peer_relay.handshake import CallerHandshake, Purpose
from edgespec.parts.peer_relay.paired import PairedPeer, PairedPeers
from edgespec.parts.peer_relay.port import PeerPort
from edgespec.parts.peer_relay.service import desk
from edgespec.parts.peer_relay.settings import PeersSection, RelaySection
from edgespec.parts.peer_relay.tunnel import Caller, Channel
from edgespec.shared.address import Address
from edgespec.shared.guards import PLAIN, Guards
from edgespec.shared.pairing_listener import PairingListener
from edgespec.shared.server_keys import ServerKeyStore
from edgespec.shared.tls import client_context, peer_spki_hash
from edgespec.worker.pair import pair
from tests.support.until import until

GATEWAY = b"g" * 32
HOME = PeersSection(listen=True, host="127.0.0.1", port=0, discover=False)


@dataclass
class Peer:
    """A daemon that listens, or only calls."""

    key: SigningKey
    peers: PairedPeers
    caller: Caller
    port: PeerPort
    desk: PairingListener
    address: Address
    gateways: dict[bytes, Sequence[Address]] = field(default_factory=dict)
    """To which it relays."""

    def meets(self, other: Peer) -> PairedPeer:
        """Stores each in the other's list, as after pairing; returns the other's record here."""
        other.peers.add(self.key.public, b"", "caller", "", 1)
        return self.peers.add(other.key.public, b"", "relay", str(other.address), 1)

    async def pair(self, other: Peer, code: Code) -> PairedPeer:
        return await pair(code, Party(self.key, "caller", purpose="peer"), self.peers.add, [other.address])


@asynccontextmanager
async def peer(folder: Path, relay: RelaySection | None = None, guards: Guards = PLAIN) -> AsyncIterator[Peer]:
    """A listening daemon with a state folder of its own."""
    store = ServerKeyStore(folder)
    key = store.identity()
    tls = store.tls_identity()
    peers = PairedPeers(store.folder)
    gateways: dict[bytes, Sequence[Address]] = {}
    pairing = desk(key, folder.name, tls.spki_hash, peers)
    port = PeerPort(
        key, folder.name, tls, peers, pairing, lambda wanted: gateways.get(wanted, []), lambda: list(gateways),
        relay or RelaySection(offer=True), guards,
    )  # fmt: skip
    number = await port.start(HOME)
    caller = Caller(key, guards)
    try:
        yield Peer(key, peers, caller, port, pairing, Address("127.0.0.1", number), gateways)
    finally:
        await caller.close()
        await port.close()


@asynccontextmanager
async def echo() -> AsyncIterator[Address]:
    """A machine behind the relay that returns what it gets."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()


@asynccontextmanager
async def two(
    tmp_path: Path, relay: RelaySection | None = None, guards: Guards = PLAIN
) -> AsyncIterator[tuple[Peer, Peer]]:
    """A caller and a relay, not paired yet."""
    async with peer(tmp_path / "caller") as one, peer(tmp_path / "relay", relay, guards) as other:
        yield one, other


@asynccontextmanager
async def relaying(tmp_path: Path, guards: Guards = PLAIN) -> AsyncIterator[tuple[Peer, Peer]]:
    """A caller, and a relay to a machine that returns what it gets."""
    async with two(tmp_path, guards=guards) as (caller, relay), echo() as behind:
        relay.gateways[GATEWAY] = [behind]
        yield caller, relay


async def exchanged(end: socket.socket, data: bytes) -> bytes:
    """Sends `data` through a tunnel, and returns as many bytes that come back."""
    loop = asyncio.get_running_loop()
    got = b""
    sending = asyncio.create_task(loop.sock_sendall(end, data))
    async with asyncio.timeout(20):
        while len(got) < len(data) and (more := await loop.sock_recv(end, 65536)):
            got += more
    await sending
    return got


@asynccontextmanager
async def by_hand(relay: Peer, host: str = "127.0.0.1") -> AsyncIterator[Channel]:
    context = client_context()
    context.set_alpn_protocols([PEER_PROTOCOL])
    where = relay.address
    streams = await asyncio.open_connection(
        where.host, where.port, ssl=context, server_hostname="", local_addr=(host, 0)
    )
    try:
        yield Channel(*streams)
    finally:
        streams[1].transport.abort()


def calling(channel: Channel, caller: Peer, relay: Peer) -> CallerHandshake:
    spki = peer_spki_hash(channel.writer.get_extra_info("ssl_object"))
    return CallerHandshake(caller.key, relay.key.public, "relay", spki, os.urandom(32))


async def shaken(channel: Channel, caller: Peer, relay: Peer, what: Purpose = "relay") -> None:
    handshake = calling(channel, caller, relay)
    await channel.send_message(handshake.hello)
    await channel.send_message(handshake.challenged(await channel.next_message(), what, GATEWAY))
    handshake.answered(await channel.next_message())
    await until(lambda: relay.port.tunnels or what == "presence")
