"""Connections between two paired daemons, and their calling end: the handshake, then presence or a tunnel.

They carry chunks on a TLS stream, first the handshake's and then a tunnel's bytes. A chunk is its length in two bytes,
big-endian, and that many bytes; an empty one is a heartbeat. Each end of a tunnel sends one every `HEARTBEAT_S`; an end
that has waited `SILENT_S` for any chunk treats the other as gone. Time in which this end itself could not take more
bytes does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.inflow import Bucket, flood
from edgespec.core.protocol.messages import VERSION, encode
from edgespec.core.protocol.signing import SigningKey
from edgespec.parts.peer_relay.addresses import PEER_PROTOCOL
from edgespec.parts.peer_relay.connecting import connected
from edgespec.parts.peer_relay.handshake import (
    MAX_CHUNK_BYTES,
    MAX_PEER_BYTES,
    NO_GATEWAY,
    CallerHandshake,
    Granted,
    PeerMessage,
    PeerUnavailable,
    Purpose,
    decode_peer,
)
from edgespec.parts.peer_relay.paired import PairedPeer
from edgespec.shared.address import Address, Tunnelled, not_counted
from edgespec.shared.guards import PLAIN, Guards
from edgespec.shared.log_text import cause
from edgespec.shared.tls import client_context, peer_spki_hash

HEARTBEAT_S = 0.25
SILENT_S = 0.9
"""A relay that is gone without a sign is noticed within a second; three heartbeats may be late or lost before."""
LOOKS = 4
"""Waits for a chunk within `SILENT_S`."""
BUFFER_BYTES = 64 * 1024
"""Unsent bytes in one direction from which on no more are read."""
CHUNKS_PER_S = 1000.0
CHUNKS_BURST = 64
"""Read from one tunnel, heartbeats included; more wait in the sender's own buffers."""
CLOSE_S = 1.0

Wait = Callable[[int], float]
"""Bytes to forward -> seconds to wait before."""


class Channel:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(BUFFER_BYTES)
        self.reader = reader
        self.writer = writer
        self._size: int | None = None
        """Length of the chunk that is being read; kept when a timeout ended the wait for the rest of it."""

    async def send(self, data: bytes) -> None:
        """Sends one chunk of at most `MAX_CHUNK_BYTES`. Raises OSError if the connection has ended."""
        if self.writer.transport.is_closing():  # asyncio's TLS transport would raise AttributeError
            raise ConnectionResetError
        self.writer.write(len(data).to_bytes(2, "big") + data)
        await self.writer.drain()

    async def receive(self, most: int = MAX_CHUNK_BYTES) -> bytes:
        """The next chunk. Raises RemoteProtocolError (`oversize`) for a longer one, EOFError at the end."""
        if self._size is None:
            self._size = int.from_bytes(await self.reader.readexactly(2), "big")
        if self._size > most:
            raise RemoteProtocolError("oversize", f"a chunk of {self._size} bytes from a peer, more than {most}")

        data = await self.reader.readexactly(self._size)
        self._size = None
        return data

    async def send_message(self, message: PeerMessage) -> None:
        await self.send(encode(message))

    async def next_message(self) -> PeerMessage:
        """The next message of the handshake. Raises RemoteProtocolError (`malformed`, `oversize`), EOFError."""
        return decode_peer(await self.receive(MAX_PEER_BYTES))

    async def close(self) -> None:
        """Sends what is unsent and closes the connection, whatever the other end does."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                self.writer.close()
                await self.writer.wait_closed()
        self.writer.transport.abort()


async def forward(channel: Channel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wait: Wait) -> None:
    """Forwards between the tunnel and a stream, until either ends or the other end of the tunnel is silent."""
    writer.transport.set_write_buffer_limits(BUFFER_BYTES)
    works = _inwards(channel, writer, wait), _outwards(channel, reader, wait), _beat(channel)
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()


async def _inwards(channel: Channel, writer: asyncio.StreamWriter, wait: Wait) -> None:
    rate = Bucket(CHUNKS_PER_S, CHUNKS_BURST)
    loop = asyncio.get_running_loop()
    while True:
        data = await _next(channel)
        rate.take(1, loop.time())
        await asyncio.sleep(max(wait(len(data)), rate.free_at - loop.time()))
        if data:
            writer.write(data)
            await writer.drain()


async def _next(channel: Channel) -> bytes:
    """The next chunk. Raises TimeoutError if the other end is silent.

    Each look counts for no more than its own time: if this process stood still, what has arrived meanwhile, or what
    the other end sends now if the whole machine stood still, is read by the next look.
    """
    for _ in range(LOOKS):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENT_S / LOOKS):
                return await channel.receive()
    raise TimeoutError


async def _outwards(channel: Channel, reader: asyncio.StreamReader, wait: Wait) -> None:
    while data := await reader.read(MAX_CHUNK_BYTES):
        await asyncio.sleep(wait(len(data)))
        await channel.send(data)


async def _beat(channel: Channel) -> None:
    while True:
        await channel.send(b"")
        await asyncio.sleep(HEARTBEAT_S)


log = logging.getLogger("edgespec.parts.peer_relay")

STEP_S = 3.0
"""Time for connection and handshake, each; the two are on one campus."""


class Caller:
    """Calls peers in the name of this machine."""

    def __init__(self, key: SigningKey, guards: Guards = PLAIN) -> None:
        self._key = key
        self._guards = guards
        self._tunnels: set[asyncio.Task[None]] = set()

    async def presence(self, peer: PairedPeer, address: Address) -> tuple[Granted, str]:
        """The peer's statement about itself, and the address of this machine on the way there.

        Raises PeerUnavailable if it is not reached, or refuses; RemoteProtocolError if it is another machine, or
        floods this one.
        """
        async with self._called(peer, address, "presence", NO_GATEWAY) as (channel, granted):
            return granted, str(channel.writer.get_extra_info("sockname")[0])

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

    def way(
        self, peer: PairedPeer, address: Address, gateway: bytes, failed: Callable[[], None] = not_counted
    ) -> Tunnelled:
        """The address of the gateway with this key, through the peer at this address; `failed`: as of `Tunnelled`."""
        connect = partial(self.tunnel, peer, address, gateway)
        return Tunnelled(address.host, address.port, peer.name, connect=connect, failed=failed)

    async def close(self) -> None:
        for task in self._tunnels:
            task.cancel()
        await asyncio.gather(*self._tunnels, return_exceptions=True)

    async def _hold(
        self, peer: PairedPeer, address: Address, gateway: bytes, end: socket.socket, opened: asyncio.Future[None]
    ) -> None:
        try:
            async with self._called(peer, address, "relay", gateway) as (channel, _):
                reader, writer = await asyncio.open_unix_connection(sock=end)
                if not opened.cancelled():
                    opened.set_result(None)
                    await forward(channel, reader, writer, lambda size: 0.0)
                    log.info("the tunnel through %s has ended", peer.name)
        except (PeerUnavailable, RemoteProtocolError) as error:
            if not opened.done():
                opened.set_exception(error)
        finally:
            end.close()

    @asynccontextmanager
    async def _called(
        self, peer: PairedPeer, address: Address, what: Purpose, gateway: bytes
    ) -> AsyncIterator[tuple[Channel, Granted]]:
        if peer.min_version > VERSION:
            raise PeerUnavailable.refused(peer.name, "version")

        channel: Channel | None = None
        granted: Granted | None = None
        floods: list[str] = []
        try:
            try:
                async with asyncio.timeout(STEP_S):
                    sock = await connected(address)
                    meter = self._guards.meter()
                    if meter is not None:
                        sock.watch(meter, lambda: granted is not None, floods.append)
                    channel = await _secured(sock)
                if channel.writer.get_extra_info("ssl_object").selected_alpn_protocol() != PEER_PROTOCOL:
                    raise PeerUnavailable.refused(peer.name, "version")
                async with asyncio.timeout(STEP_S):
                    granted = await self._granted(channel, peer, what, gateway)
            except (TimeoutError, OSError, EOFError) as error:
                if floods:
                    raise _flood(floods) from None
                why = "no answer" if isinstance(error, TimeoutError) else cause(error)
                where = Address(address.host, address.port)
                text = f"The peer {peer.name} is not reached at {where} ({why})."
                raise PeerUnavailable("silent", text) from None
            yield channel, granted
            if floods:
                log.warning("the peer %s was dropped: %s", peer.name, _flood(floods))
        finally:
            if channel is not None:
                await channel.close()

    async def _granted(self, channel: Channel, peer: PairedPeer, what: Purpose, gateway: bytes) -> Granted:
        """The peer's grant, after the handshake. Raises PeerUnavailable, RemoteProtocolError, OSError, EOFError."""
        spki = peer_spki_hash(channel.writer.get_extra_info("ssl_object"))
        handshake = CallerHandshake(self._key, peer.key, peer.name, spki, os.urandom(32))
        await channel.send_message(handshake.hello)
        await channel.send_message(handshake.challenged(await channel.next_message(), what, gateway))
        return handshake.answered(await channel.next_message())


async def _secured(sock: socket.socket) -> Channel:
    context = client_context()
    context.set_alpn_protocols([PEER_PROTOCOL])
    return Channel(*await asyncio.open_connection(sock=sock, ssl=context, server_hostname=""))


def _flood(reasons: Sequence[str]) -> RemoteProtocolError:
    return flood(f"{reasons[0]}, more than are allowed")
