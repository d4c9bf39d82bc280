"""A peer, or another machine at its address, that floods its caller: bounded work, then the call ends."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.peer_handshake import PeerUnavailable
from edgespec.shared.address import PEER_PROTOCOL, Address
from tests.support.links import make_certificate
from tests.support.peers import peer


async def presence_at(tmp_path: Path, answer: object) -> Exception:
    """Calls a machine that accepts and then floods; returns the error."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(writer)  # type: ignore[operator]
        await reader.read()
        writer.close()

    context, _ = make_certificate(tmp_path)
    context.set_alpn_protocols([PEER_PROTOCOL])
    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    async with server, peer(tmp_path / "caller") as caller, peer(tmp_path / "relay") as relay:
        there = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises((RemoteProtocolError, PeerUnavailable)) as error:
            await caller.caller.presence(caller.meets(relay), there)
    return error.value


@pytest.mark.claim("a-machine-that-floods-before-its-proof-is-dropped")
async def test_a_chunk_longer_than_a_handshakes_is_not_read(tmp_path: Path) -> None:
    async def long(writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x40\x00" + bytes(1 << 14))

    error = await presence_at(tmp_path, long)
    assert isinstance(error, RemoteProtocolError) and error.reason == "oversize"


@pytest.mark.claim("a-machine-that-floods-before-its-proof-is-dropped")
async def test_tiny_tls_records_before_the_proof_are_counted(tmp_path: Path) -> None:
    async def slowly(writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x04\x00")
        for _ in range(1000):  # of 1024: the chunk never ends
            if writer.transport.is_closing():
                return
            writer.write(b"x")
            await asyncio.sleep(0)

    error = await presence_at(tmp_path, slowly)
    assert re.fullmatch(r"\d+ TLS records, more than are allowed", str(error))
