"""Floods of WebSocket frames, and the number of frames that `websockets` has processed."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed
from websockets.protocol import Protocol, Side

from tests.support.until import until

FLOOD_FRAMES = 30_000


def frame(opcode: int, payload: bytes = b"", *, end: bool = True, masked: bool = True) -> bytes:
    """A short frame; clients mask theirs, here with zeros."""
    head = bytes([(0x80 if end else 0) | opcode, (0x80 if masked else 0) | len(payload)])
    return head + (bytes(4) if masked else b"") + payload


def count_frames(monkeypatch: pytest.MonkeyPatch) -> Counter[Side]:
    """Counts, for each side, the frames that `websockets` processes from now on."""
    count: Counter[Side] = Counter()
    original = Protocol.recv_frame

    def counting(self: Protocol, frame: Any) -> None:
        count[self.side] += 1
        original(self, frame)

    monkeypatch.setattr(Protocol, "recv_frame", counting)
    return count


async def pour(ws: Connection, frame: bytes) -> None:
    """Writes a flood of this frame, or what the other side takes of it."""
    for _ in range(100):
        ws.transport.write(frame * (FLOOD_FRAMES // 100))
        await asyncio.sleep(0)
        await until(lambda: ws.transport.get_write_buffer_size() < 1 << 20 or ws.transport.is_closing())
        if ws.transport.is_closing():
            return


async def closed(ws: Connection) -> int:
    """Reads until the other side hangs up; returns the close code, 1006 for none."""
    with pytest.raises(ConnectionClosed) as caught:
        async with asyncio.timeout(20):
            while True:
                await ws.recv()
    return caught.value.rcvd.code if caught.value.rcvd else 1006
