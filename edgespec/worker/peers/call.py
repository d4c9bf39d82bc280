"""The calling end of a connection between paired daemons: the handshake, then presence or a tunnel."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.pairing.messages import VERSION
from edgespec.core.peers.handshake import CallerHandshake
from edgespec.core.peers.messages import (
    MAX_CHUNK_BYTES,
    NO_GATEWAY,
    Granted,
    PeerUnavailable,
    Purpose,
    decode_peer,
)
from edgespec.core.protocol.messages import encode
from edgespec.core.protocol.signing import SigningKey
from edgespec.shared.address import PEER_PATH, Address
from edgespec.shared.counted import connected
from edgespec.shared.guarded import CountedClient
from edgespec.shared.log_text import cause
from edgespec.shared.paired import PairedPeer
from edgespec.shared.tls import client_context, peer_spki_hash
from edgespec.shared.wire import set_nodelay
from edgespec.worker.peers.tunnel import forward, hang_up

log = logging.getLogger("edgespec.worker.peers")
_quiet = logging.getLogger("edgespec.worker.peers.websockets")
_quiet.setLevel(logging.CRITICAL)  # this package reports the same in one line

STEP_S = 3.0
"""For connection and handshake; the two are on one campus."""
OPTIONS: dict[str, Any] = {
    "compression": None,
    "max_size": MAX_CHUNK_BYTES,
    "max_queue": 8,
    "ping_interval": None,  # the tunnel has its own heartbeat
    "close_timeout": 1.0,
    "logger": _quiet,
}
"""Of both ends, for `websockets`."""


class Caller:
    """Calls peers in the name of this machine."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key
        self._tunnels: set[asyncio.Task[None]] = set()

    async def presence(self, peer: PairedPeer, address: Address) -> tuple[Granted, str]:
        """What the peer says of itself, and the address of this machine on the way there.

        Raises PeerUnavailable where it is not reached, or refuses; RemoteProtocolError where it is another machine, or
        floods this one.
        """
        async with self._called(peer, address, "presence", NO_GATEWAY) as (ws, granted):
            return granted, str(ws.local_address[0])

    async def tunnel(self, peer: PairedPeer, address: Address, gateway: bytes) -> socket.socket:
        """A stream socket to the gateway with this key, through the peer. Raises as `presence`."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._hold(peer, address, gateway, theirs, opened))
        self._tunnels.add(task)
        task.add_done_callback(self._tunnels.discard)
        try:
            await opened
        except BaseException:  # cancelled too: the address lost its race
            ours.close()
            task.cancel()
            raise
        return ours

    async def close(self) -> None:
        """Ends all tunnels."""
        for task in self._tunnels:
            task.cancel()
        await asyncio.gather(*self._tunnels, return_exceptions=True)

    async def _hold(
        self, peer: PairedPeer, address: Address, gateway: bytes, end: socket.socket, opened: asyncio.Future[None]
    ) -> None:
        try:
            async with self._called(peer, address, "relay", gateway) as (ws, _):
                reader, writer = await asyncio.open_unix_connection(sock=end)
                if not opened.cancelled():
                    opened.set_result(None)
                    await forward(ws, reader, writer, lambda size: 0.0)
                    log.info("the tunnel through %s has ended", peer.name)
                    if ws.flooded is not None:
                        log.warning("the peer %s was dropped: %s", peer.name, ws.flooded)
        except (PeerUnavailable, RemoteProtocolError) as error:
            if not opened.done():
                opened.set_exception(error)
        finally:
            end.close()

    @asynccontextmanager
    async def _called(
        self, peer: PairedPeer, address: Address, what: Purpose, gateway: bytes
    ) -> AsyncIterator[tuple[CountedClient, Granted]]:
        if peer.min_version > VERSION:
            raise PeerUnavailable.refused(peer.name, "version")
        ws = await self._dial(peer, address)
        try:
            try:
                async with asyncio.timeout(STEP_S):
                    granted = await self._shake(ws, peer, what, gateway)
            except (TimeoutError, OSError, WebSocketException) as error:
                raise ws.flooded or _silent(peer, address, error) from None
            yield ws, granted
        finally:
            await hang_up(ws)

    async def _dial(self, peer: PairedPeer, address: Address) -> CountedClient:
        options: dict[str, Any] = {**OPTIONS, "ssl": client_context(), "proxy": None, "user_agent_header": None}
        try:
            async with asyncio.timeout(STEP_S):
                sock = await connected(address)
                options |= {"sock": sock, "create_connection": partial(CountedClient, sock)}
                ws = await connect(address.url(PEER_PATH), **options)
        except (TimeoutError, OSError, EOFError, WebSocketException) as error:
            raise _silent(peer, address, error) from None
        assert isinstance(ws, CountedClient)
        return ws

    async def _shake(self, ws: CountedClient, peer: PairedPeer, what: Purpose, gateway: bytes) -> Granted:
        set_nodelay(ws)
        spki = peer_spki_hash(ws.transport.get_extra_info("ssl_object"))
        handshake = CallerHandshake(self._key, peer.key, peer.name, spki, os.urandom(32))
        await ws.send(encode(handshake.hello))
        ask = handshake.challenged(decode_peer(await ws.recv()), what, gateway)
        await ws.send(encode(ask))
        granted = handshake.answered(decode_peer(await ws.recv()))
        ws.inflow.proven = True
        return granted


def _silent(peer: PairedPeer, address: Address, error: Exception) -> PeerUnavailable:
    why = "no answer" if isinstance(error, TimeoutError) else cause(error)
    return PeerUnavailable(
        "silent", f"The peer {peer.name} is not reached at {Address(address.host, address.port)} ({why})."
    )
