"""A tunnel between two daemons: bytes both ways in WebSocket messages, and a heartbeat each way.

An empty message is a heartbeat. Each end sends one every `HEARTBEAT_S`; an end that has waited `SILENT_S` for any
message treats the other as gone. Time in which this end itself could not take more bytes does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.peers.messages import MAX_CHUNK_BYTES

HEARTBEAT_S = 0.25
SILENT_S = 0.9
"""A relay that is gone without a sign is noticed within a second; three heartbeats may be late or lost before."""
LOOKS = 4
"""For a message, within `SILENT_S`."""
BUFFER_BYTES = 64 * 1024
"""Unsent bytes in one direction from which on no more are read."""

Wait = Callable[[int], float]
"""Bytes to forward -> seconds to wait before."""


async def forward(ws: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wait: Wait) -> None:
    """Forwards between the tunnel and a stream, until either ends or the other end of the tunnel is silent."""
    writer.transport.set_write_buffer_limits(BUFFER_BYTES)
    tasks = [asyncio.create_task(work) for work in (_inwards(ws, writer, wait), _outwards(ws, reader, wait), _beat(ws))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()


async def _inwards(ws: Connection, writer: asyncio.StreamWriter, wait: Wait) -> None:
    while True:
        data = await _next(ws)
        if isinstance(data, str):
            raise RemoteProtocolError("malformed", "text in a tunnel")
        if data:
            await asyncio.sleep(wait(len(data)))
            writer.write(data)
            await writer.drain()


async def _next(ws: Connection) -> bytes | str:
    """The next message. Raises TimeoutError where the other end is silent.

    Each look counts for no more than its own time: where this process stood still, what has arrived meanwhile, or what
    the other end sends now if the whole machine stood still, is read by the next look.
    """
    for _ in range(LOOKS):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENT_S / LOOKS):
                return await ws.recv()
    raise TimeoutError


async def _outwards(ws: Connection, reader: asyncio.StreamReader, wait: Wait) -> None:
    while data := await reader.read(MAX_CHUNK_BYTES):
        await asyncio.sleep(wait(len(data)))
        await ws.send(data)


async def _beat(ws: Connection) -> None:
    while True:
        await ws.send(b"")
        await asyncio.sleep(HEARTBEAT_S)


async def hang_up(ws: Connection) -> None:
    """Closes the tunnel, whatever the other end does."""
    with contextlib.suppress(ConnectionClosed, TimeoutError):
        async with asyncio.timeout(1.0):
            await ws.close()
    ws.transport.abort()
