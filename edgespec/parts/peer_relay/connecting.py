"""A TCP connection to a peer, on which a meter may watch what it sends."""

from __future__ import annotations

import asyncio
import socket

from edgespec.shared.acceptor import MeteredSocket
from edgespec.shared.address import Address


async def connected(address: Address) -> MeteredSocket:
    """A TCP connection to the first machine with this name that takes one. Raises OSError."""
    loop = asyncio.get_running_loop()
    failed = OSError("no address")
    infos = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, where in infos:
        sock = MeteredSocket(family, kind, protocol)
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
