"""What an attacker receives about the gateway, and the tools that all floods share: pace, raw HTTP, connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

SOURCE = "127.0.0.2"
"""Floods come from this address, so that bounds per source do not meet the honest client and worker at 127.0.0.1."""
ANSWER_S = 60.0
"""Longest wait of an attacker for the response to one request."""


@dataclass(frozen=True, slots=True)
class Aim:
    """Ports on 127.0.0.1, the attacker's own API key, and the configuration of its own paired worker."""

    api_port: int
    link_port: int
    model: str
    key: str
    worker_config: str
    streams: int = 1
    """Requests that an honest neighbour keeps running at once."""


class Pace:
    """Bounds a rate: at most `per_s` turns a second, without catching up after a stall."""

    def __init__(self, per_s: float) -> None:
        self._gap_s, self._next = 1 / per_s, 0.0

    async def turn(self) -> None:
        """Waits for the next turn."""
        now = asyncio.get_running_loop().time()
        self._next = max(self._next, now)
        wait_s, self._next = self._next - now, self._next + self._gap_s
        await asyncio.sleep(wait_s)


async def at_once(workers: int, body: Callable[[], Awaitable[None]]) -> None:
    """Runs `body` again and again in so many tasks; a connection that the gateway refuses or ends is no failure."""

    async def forever() -> None:
        while True:
            try:
                await body()
            except (OSError, EOFError, TimeoutError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(forever())


@contextlib.asynccontextmanager
async def connected(port: int, **options: Any) -> Any:
    """A TCP or TLS connection from `SOURCE`, cut off at the end."""
    reader, writer = await asyncio.wait_for(
        asyncio.open_connection("127.0.0.1", port, local_addr=(SOURCE, 0), **options), ANSWER_S
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def post(aim: Aim, path: str, body: Mapping[str, Any]) -> bytes:
    """A request with the attacker's key, which has the connection closed afterwards."""
    data = json.dumps({"model": aim.model, **body}).encode()
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {aim.key}\r\nConnection: close\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


async def exchange(aim: Aim, data: bytes, count: Counter[str]) -> bytes:
    """Sends a request and reads its whole response; counts its status."""
    async with connected(aim.api_port) as (reader, writer):
        writer.write(data)
        async with asyncio.timeout(ANSWER_S):
            response: bytes = await reader.read(-1)
    count[f"status {response[9:12].decode(errors='replace') or 'none'}"] += 1
    return response
