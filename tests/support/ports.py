"""A listening port that sends back what comes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from edgespec.shared.acceptor import Acceptor, AdmittedConnection
from edgespec.shared.guards import PLAIN, Guards, PortBounds
from tests.support.until import until

LOG = logging.getLogger("tests.acceptor")


class Echo(asyncio.Protocol):
    """Sends back what comes, and `ok` for `key` once the connection is proven."""

    def __init__(self, admitted: AdmittedConnection) -> None:
        self._admitted = admitted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data == b"key":
            data = b"ok" if self._admitted.prove() else b"no"
        self._transport.write(data)


@asynccontextmanager
async def accepting(
    bounds: PortBounds, guards: Guards = PLAIN, **options: Any
) -> AsyncIterator[tuple[Acceptor, int, list[str]]]:
    """An acceptor, its port, and the reasons of what it has refused."""
    refused: list[str] = []
    acceptor = Acceptor("test port", bounds, LOG, refused.append, guards)
    port = await acceptor.start("127.0.0.1", 0, Echo, **options)
    try:
        yield acceptor, port, refused
    finally:
        acceptor.close()
        for admitted in [*acceptor.unproven, *acceptor.proven]:
            admitted.drop()
        await until(lambda: not acceptor.unproven and not acceptor.proven)
        await acceptor.wait_closed()


async def says(sock: socket.socket, data: bytes) -> bytes:
    """The reply to `data`; nothing if the other side has hung up."""
    loop = asyncio.get_running_loop()
    sock.setblocking(False)
    try:
        async with asyncio.timeout(5):
            await loop.sock_sendall(sock, data)
            return await loop.sock_recv(sock, 100)
    except (ConnectionError, BrokenPipeError):
        return b""
