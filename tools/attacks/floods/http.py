"""Floods of the API's port by strangers: no valid key in any of them."""

from __future__ import annotations

import asyncio
import secrets
import zlib
from collections import Counter

from tools.attacks.aim import Aim, Pace, at_once, connected, exchange
from tools.attacks.floods import Flood

GZIP_PER_S = 0.5
"""Bodies of 1 MB that inflate to 1 GiB; 0.4 MB a second kept the event loop blocked."""
HALF_OPEN = 2000
OPENED_PER_S = 200.0
"""All of them within ten seconds, and again as the gateway drops them."""
MALFORMED_PER_S = 200.0
WRONG_KEYS_PER_S = 200.0


def _bomb() -> bytes:
    """About 1 MB of gzip for 1 GiB of zeros, but for the trailer: a mebibyte, flushed so that it may be repeated."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    mebibyte = deflate.compress(bytes(1 << 20)) + deflate.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff" + mebibyte * 1024


async def gzip_bodies(aim: Aim, count: Counter[str]) -> None:
    body, pace = _bomb(), Pace(GZIP_PER_S)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Encoding: gzip\r\nContent-Length: {len(body) + 8}\r\n\r\n"
    ).encode()

    async def one() -> None:
        await pace.turn()
        async with connected(aim.api_port) as (reader, writer):
            count["bodies"] += 1
            writer.write(head + body)
            async with asyncio.timeout(12):
                await reader.read(-1)

    await at_once(5, one)


async def slow_headers(aim: Aim, count: Counter[str]) -> None:
    pace = Pace(OPENED_PER_S)

    async def one() -> None:
        await pace.turn()
        async with connected(aim.api_port) as (reader, writer):
            count["connections"] += 1
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            await reader.read(-1)

    await at_once(HALF_OPEN, one)


async def malformed(aim: Aim, count: Counter[str]) -> None:
    pace, key = Pace(MALFORMED_PER_S), "es-AAAAAAAA-" + "s" * 43
    bearer, start = f"Authorization: Bearer {key}".encode(), b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
    broken = (
        start + bearer + b"\x00\r\n\r\n",
        start + b"X: y\n" + bearer + b"\r\n\r\n",
        start + b"Content-Length: 5\r\n\r\n" + b'{"model":"x"} a prompt goes on here',
        start + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\na prompt goes on here",
        b"\x16\x03\x01 not HTTP at all\r\n\r\n",
    )

    async def one() -> None:
        await pace.turn()
        count["requests"] += 1
        await asyncio.wait_for(exchange(aim, broken[count["requests"] % len(broken)], count), 3)

    await at_once(8, one)


async def wrong_keys(aim: Aim, count: Counter[str]) -> None:
    pace = Pace(WRONG_KEYS_PER_S)

    async def one() -> None:
        await pace.turn()
        key = f"es-{secrets.token_hex(4)}-{secrets.token_hex(21)}0"
        head = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n\r\n"
        await exchange(aim, head.encode(), count)

    await at_once(8, one)


FLOODS = {
    "gzip-bodies": Flood("bodies that inflate to 1 GiB, without a key (B1)", "stranger", gzip_bodies),
    "slow-headers": Flood(f"{HALF_OPEN} connections with unfinished headers (B2)", "stranger", slow_headers),
    "malformed-http": Flood("requests that are no HTTP, with keys and prompts in them (B4)", "stranger", malformed),
    "wrong-keys": Flood("requests with wrong keys (B4)", "stranger", wrong_keys),
}
