"""Connections to the addresses of a name, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from edgespec.parts.peer_relay.connecting import connected
from edgespec.shared.address import Address


def resolved(monkeypatch: pytest.MonkeyPatch, *ports: int) -> Address:
    """A name with an address for each port: which addresses this machine's own names have is not known here."""

    async def getaddrinfo(*args: Any, **options: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    return Address("relay.example", 1)


async def test_the_next_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = resolved(monkeypatch, 1, server.getsockname()[1])
        with await connected(where) as sock:
            assert sock.getpeername() == server.getsockname()


async def test_a_name_at_which_nothing_listens_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    where = resolved(monkeypatch, 1, 1)
    with pytest.raises(ConnectionRefusedError):
        await connected(where)
