"""TCP sockets whose TLS records are counted as they are read, at both ends of a connection.

Neither asyncio nor `websockets` shows how many records its bytes came in (core/protocol/records.py).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from edgespec.core.protocol.records import Records
from edgespec.shared.address import Address

ENCRYPTED_AT_ONCE = 8192
"""Bytes taken from one TLS connection in one turn of the event loop: at most 370 records, of a byte each."""


class CountedSocket(socket.socket):
    """Ends its stream once its peer has sent more TLS records than allowed."""

    _is_flooding = False
    _records: Records | None = None

    def count(self, is_proven: Callable[[], bool], on_flood: Callable[[int], None]) -> None:
        """Begins to count, before the first byte is read; `on_flood` is called once, with the number of records."""
        self._records, self._is_proven, self._on_flood = Records(), is_proven, on_flood

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Called by asyncio; returns 0, as at the end of the stream, for a peer that floods."""
        if self._records is None:
            return super().recv_into(buffer, nbytes, flags)
        view = memoryview(buffer)[:ENCRYPTED_AT_ONCE]
        count = super().recv_into(view, min(nbytes, len(view)), flags)
        if not self._is_flooding:
            now = asyncio.get_running_loop().time()
            self._is_flooding = not self._records.take(view[:count], self._is_proven(), now)
            if self._is_flooding:
                self._on_flood(self._records.count)
        return 0 if self._is_flooding else count


async def connected(address: Address) -> CountedSocket:
    """A TCP connection to the first machine with this name that takes one. Raises OSError."""
    loop = asyncio.get_running_loop()
    failed = OSError("no address")
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, where in found:
        sock = CountedSocket(family, kind, protocol)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, where)
            return sock
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:  # cancelled
            sock.close()
            raise
    raise failed
