"""Floods of the link port by strangers: before TLS, in the TLS handshake, and on WebSockets that prove nothing."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from edgespec.core.pairing import messages as pairing_messages
from edgespec.core.pairing.exchange import Party, WorkerExchange
from edgespec.core.pairing.messages import Code
from edgespec.core.protocol.messages import encode
from edgespec.core.protocol.signing import SigningKey
from edgespec.shared.tls import client_context
from tools.attacks.aim import SOURCE, Aim, Pace, at_once, connected
from tools.attacks.floods import Flood

HELD = 1000
OPENED_PER_S = 100.0
HANDSHAKES_PER_S = 640.0
STARTS_PER_S = 50.0
BLOCK = 4096
"""Frames in one write."""
FRAMES_PER_S = 100_000.0
"""Of one connection, as far as the gateway reads them: 0.6 MB a second."""
PING = b"\x89\x80" + bytes(4)
"""An empty ping, masked with zeros."""
CONTINUATION = b"\x00\x80" + bytes(4)
FRAGMENT = b"\x02\x80" + bytes(4)
"""The empty beginning of a fragmented binary message."""


async def pre_tls(aim: Aim, count: Counter[str]) -> None:
    pace = Pace(OPENED_PER_S)

    async def one() -> None:
        await pace.turn()
        async with connected(aim.link_port) as (reader, _):
            count["connections"] += 1
            await reader.read(-1)

    await at_once(HELD, one)


async def handshakes(aim: Aim, count: Counter[str]) -> None:
    pace, context = Pace(HANDSHAKES_PER_S), client_context()

    async def one() -> None:
        await pace.turn()
        async with connected(aim.link_port, ssl=context):
            count["handshakes"] += 1

    await at_once(16, one)


def websocket(aim: Aim, path: str) -> Any:
    """A WebSocket to the gateway, as a context manager."""
    return connect(
        f"wss://127.0.0.1:{aim.link_port}{path}", ssl=client_context(), proxy=None, compression=None,
        ping_interval=None, open_timeout=15, close_timeout=0.1, local_addr=(SOURCE, 0),
    )  # fmt: skip


async def pour(ws: ClientConnection, frame: bytes, count: Counter[str]) -> None:
    """Writes raw frames as fast as the gateway reads them, up to the bound, until the connection ends."""
    pace, block = Pace(FRAMES_PER_S / BLOCK), frame * BLOCK
    while not ws.transport.is_closing() and ws.close_code is None:
        await pace.turn()
        if ws.transport.get_write_buffer_size() < len(block):
            ws.transport.write(block)
            count["frames"] += BLOCK


def poured(
    path: str, frame: bytes, connections: int, first: bytes = b""
) -> Callable[[Aim, Counter[str]], Awaitable[None]]:
    """A flood of one kind of frame on so many connections at once."""

    async def flood(aim: Aim, count: Counter[str]) -> None:
        async def one() -> None:
            with suppress(WebSocketException):
                async with websocket(aim, path) as ws:
                    count["connections"] += 1
                    ws.transport.write(first)
                    await pour(ws, frame, count)
            await asyncio.sleep(0.05)

        await at_once(connections, one)

    return flood


async def nameplates(aim: Aim, count: Counter[str]) -> None:
    """Pairing attempts that know no code: any nameplate, any words."""
    pace, me = Pace(STARTS_PER_S), Party(SigningKey(os.urandom(32)), "stranger")

    async def one() -> None:
        await pace.turn()
        # Older checkouts have no third field, and smaller numbers.
        lowest = getattr(pairing_messages, "MIN_NAMEPLATE", 1)
        nameplate = random.randint(lowest, pairing_messages.MAX_NAMEPLATE)
        parts: tuple[Any, ...] = (nameplate, ("acorn", "album", "amber"), 0)
        code = Code(*parts[: len(fields(Code))])
        start = WorkerExchange(code, me, bytes(32), os.urandom).start()
        with suppress(WebSocketException):
            async with websocket(aim, "/pair") as ws:
                count["starts"] += 1
                await ws.send(encode(start))
                async with asyncio.timeout(3):
                    await ws.recv()

    await at_once(4, one)


FLOODS = {
    "pre-tls": Flood(f"{HELD} connections that never begin TLS (B2)", "stranger", pre_tls),
    "tls-handshakes": Flood(f"up to {HANDSHAKES_PER_S:g} TLS handshakes a second (B2)", "stranger", handshakes),
    "pings-link-1": Flood("WebSocket pings on /link, one connection (B3)", "stranger", poured("/link", PING, 1)),
    "pings-link-4": Flood("WebSocket pings on /link, four connections (B3)", "stranger", poured("/link", PING, 4)),
    "pings-pair-4": Flood("WebSocket pings on /pair, four connections (B3)", "stranger", poured("/pair", PING, 4)),
    "continuations": Flood(
        "empty continuation frames on /link (B3)", "stranger", poured("/link", CONTINUATION, 1, FRAGMENT)
    ),
    "nameplates": Flood("pairing attempts with any nameplate (C1)", "stranger", nameplates, pairs=True),
}
