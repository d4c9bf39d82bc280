"""The calling end of a connection between paired daemons: the handshake, then presence or a tunnel."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.peers.handshake import (
    NO_GATEWAY,
    CallerHandshake,
    Granted,
    PeerUnavailable,
    Purpose,
)
from edgespec.core.protocol.inflow import flood
from edgespec.core.protocol.messages import VERSION
from edgespec.core.protocol.signing import SigningKey
from edgespec.shared.acceptor import connected
from edgespec.shared.address import PEER_PROTOCOL, Address, Relayed
from edgespec.shared.log_text import cause
from edgespec.shared.paired import PairedPeer
from edgespec.shared.tls import client_context, peer_spki_hash
from edgespec.worker.peers.tunnel import Channel, forward

log = logging.getLogger("edgespec.worker.peers")

STEP_S = 3.0
"""Time for connection and handshake, each; the two are on one campus."""


class _Call:
    """One connection to a peer, with what ends it if the other machine floods."""

    def __init__(self, peer: PairedPeer, address: Address) -> None:
        self.peer, self.address = peer, address
        self.is_proven = False
        self.flooded: RemoteProtocolError | None = None

    async def dial(self) -> Channel:
        """Raises OSError, EOFError; PeerUnavailable if the other machine speaks another version."""
        sock, context = await connected(self.address), client_context()
        context.set_alpn_protocols([PEER_PROTOCOL])
        sock.count(lambda: self.is_proven, self._too_many)
        channel = Channel(*await asyncio.open_connection(sock=sock, ssl=context, server_hostname=""))
        if channel.writer.get_extra_info("ssl_object").selected_alpn_protocol() != PEER_PROTOCOL:
            channel.writer.transport.abort()
            raise PeerUnavailable.refused(self.peer.name, "version")
        return channel

    async def shake(self, channel: Channel, key: SigningKey, what: Purpose, gateway: bytes) -> Granted:
        """The peer's grant. Raises PeerUnavailable, RemoteProtocolError."""
        spki = peer_spki_hash(channel.writer.get_extra_info("ssl_object"))
        handshake = CallerHandshake(key, self.peer.key, self.peer.name, spki, os.urandom(32))
        await channel.send_message(handshake.hello)
        await channel.send_message(handshake.challenged(await channel.next_message(), what, gateway))
        granted = handshake.answered(await channel.next_message())
        self.is_proven = True
        return granted

    def unreached(self, error: Exception) -> Exception:
        """Why the call failed: a flood, or what happened to the connection."""
        why = "no answer" if isinstance(error, TimeoutError) else cause(error)
        where = Address(self.address.host, self.address.port)
        return self.flooded or PeerUnavailable(
            "silent", f"The peer {self.peer.name} is not reached at {where} ({why})."
        )

    def _too_many(self, records: int) -> None:
        self.flooded = flood(f"{records} TLS records, more than are allowed")


class Caller:
    """Calls peers in the name of this machine."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key
        self._tunnels: set[asyncio.Task[None]] = set()

    async def presence(self, peer: PairedPeer, address: Address) -> tuple[Granted, str]:
        """The peer's statement about itself, and the address of this machine on the way there.

        Raises PeerUnavailable if it is not reached, or refuses; RemoteProtocolError if it is another machine, or
        floods this one.
        """
        async with self._called(_Call(peer, address), "presence", NO_GATEWAY) as (channel, granted):
            return granted, str(channel.writer.get_extra_info("sockname")[0])

    async def tunnel(self, peer: PairedPeer, address: Address, gateway: bytes) -> socket.socket:
        """A stream socket to the gateway with this key, through the peer. Raises as `presence`."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._hold(_Call(peer, address), gateway, theirs, opened))
        self._tunnels.add(task)
        task.add_done_callback(self._tunnels.discard)
        try:
            await opened
        except BaseException:  # cancelled too: the address lost its race
            ours.close()
            task.cancel()
            raise
        return ours

    def way(self, peer: PairedPeer, address: Address, gateway: bytes) -> Relayed:
        """The address of the gateway with this key, through the peer at this address."""
        connect = partial(self.tunnel, peer, address, gateway)
        return Relayed(address.host, address.port, peer.name, peer.key, connect=connect)

    async def close(self) -> None:
        for task in self._tunnels:
            task.cancel()
        await asyncio.gather(*self._tunnels, return_exceptions=True)

    async def _hold(self, call: _Call, gateway: bytes, end: socket.socket, opened: asyncio.Future[None]) -> None:
        try:
            async with self._called(call, "relay", gateway) as (channel, _):
                reader, writer = await asyncio.open_unix_connection(sock=end)
                if not opened.cancelled():
                    opened.set_result(None)
                    await forward(channel, reader, writer, lambda size: 0.0)
                    log.info("the tunnel through %s has ended", call.peer.name)
                    if call.flooded is not None:
                        log.warning("the peer %s was dropped: %s", call.peer.name, call.flooded)
        except (PeerUnavailable, RemoteProtocolError) as error:
            if not opened.done():
                opened.set_exception(error)
        finally:
            end.close()

    @asynccontextmanager
    async def _called(self, call: _Call, what: Purpose, gateway: bytes) -> AsyncIterator[tuple[Channel, Granted]]:
        if call.peer.min_version > VERSION:
            raise PeerUnavailable.refused(call.peer.name, "version")
        channel: Channel | None = None
        try:
            try:
                async with asyncio.timeout(STEP_S):
                    channel = await call.dial()
                async with asyncio.timeout(STEP_S):
                    granted = await call.shake(channel, self._key, what, gateway)
            except (TimeoutError, OSError, EOFError) as error:
                raise call.unreached(error) from None
            yield channel, granted
        finally:
            if channel is not None:
                await channel.close()
