"""A peer, or another machine at its address, that floods its caller: bounded work, then the call ends."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path

import pytest

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.peers.handshake import PeerUnavailable
from edgespec.core.protocol import records
from edgespec.shared.address import PEER_PROTOCOL, Address
from edgespec.worker.peers import tunnel
from tests.edgespec.worker.peers.test_port import GATEWAY, relaying
from tests.support.links import make_certificate
from tests.support.peers import peer


async def tiny_records(writer: asyncio.StreamWriter, count: int = records.MAX_UNPROVEN_RECORDS + 2000) -> None:
    """The beginning of one chunk of 16 KiB, in records of one byte each."""
    writer.write(bytes([0x40, 0x00]))
    for sent in range(count):
        if writer.transport.is_closing():
            return
        writer.write(b"x")
        if sent % 100 == 0:
            await asyncio.sleep(0)


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


async def ended(end: socket.socket) -> None:
    async with asyncio.timeout(20):
        assert await asyncio.get_running_loop().sock_recv(end, 1) == b""


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


@pytest.mark.claim("a-machine-that-floods-before-its-proof-is-dropped")
async def test_a_relays_tiny_tls_records_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(records, "RECORDS_PER_S", 1.0)  # a busy machine sends fewer than the shipped rate
    monkeypatch.setattr(tunnel, "SILENT_S", 60.0)  # a chunk that is not complete is none
    async with relaying(tmp_path) as (caller, relay):
        end = await caller.caller.tunnel(caller.meets(relay), relay.address, GATEWAY)
        await tiny_records(relay.port.tunnels[caller.key.public].writer, records.RECORDS_BURST + 2000)
        await ended(end)
    assert [one for one in caplog.messages if re.fullmatch(r"the peer relay was dropped: \d+ TLS records, .*", one)]
