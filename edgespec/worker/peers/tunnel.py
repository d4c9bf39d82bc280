"""A connection between two paired daemons: chunks on a TLS stream, first the handshake's and then a tunnel's bytes.

A chunk is its length in two bytes, big-endian, and that many bytes; an empty one is a heartbeat. Each end of a tunnel
sends one every `HEARTBEAT_S`; an end that has waited `SILENT_S` for any chunk treats the other as gone. Time in which
this end itself could not take more bytes does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.peers.handshake import MAX_CHUNK_BYTES, MAX_PEER_BYTES, PeerMessage, decode_peer
from edgespec.core.protocol.inflow import Bucket
from edgespec.core.protocol.messages import encode

HEARTBEAT_S = 0.25
SILENT_S = 0.9
"""A relay that is gone without a sign is noticed within a second; three heartbeats may be late or lost before."""
LOOKS = 4
"""Waits for a chunk within `SILENT_S`."""
BUFFER_BYTES = 64 * 1024
"""Unsent bytes in one direction from which on no more are read."""
CHUNKS_PER_S, CHUNKS_BURST = 1000.0, 64
"""Read from one tunnel, heartbeats included; more wait in the sender's own buffers."""
CLOSE_S = 1.0

Wait = Callable[[int], float]
"""Bytes to forward -> seconds to wait before."""


class Channel:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(BUFFER_BYTES)
        self.reader, self.writer = reader, writer
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
    rate, loop = Bucket(CHUNKS_PER_S, CHUNKS_BURST), asyncio.get_running_loop()
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
