"""A peer, or another machine at its address, that floods its caller: bounded work, then the call ends."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from pathlib import Path

import pytest
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.protocol import CLIENT, Side

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol import records
from edgespec.core.protocol.inflow import InflowLimits
from edgespec.shared.address import Address
from edgespec.worker.peers import tunnel
from tests.edgespec.worker.peers.test_port import GATEWAY, relaying
from tests.support.floods import count_frames, frame, pour
from tests.support.links import make_certificate
from tests.support.peers import peer

PING = frame(9, masked=False)


@pytest.fixture
def processed(monkeypatch: pytest.MonkeyPatch) -> Counter[Side]:
    return count_frames(monkeypatch)


async def pings(ws: ServerConnection) -> None:
    await pour(ws, PING)
    await ws.wait_closed()


async def tiny_records(ws: Connection, count: int = records.MAX_UNPROVEN_RECORDS + 2000) -> None:
    """The beginning of one frame of 16 KiB, in records of one byte each."""
    ws.transport.write(bytes([0x82, 0x7E, 0x40, 0x00]))
    for sent in range(count):
        ws.transport.write(b"x")
        if sent % 100 == 0:
            await asyncio.sleep(0)


async def presence_at(tmp_path: Path, answer: object) -> str:
    """Calls a machine that accepts and then floods; returns the text of the error."""

    async def handle(ws: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await answer(ws)  # type: ignore[operator]
            await ws.wait_closed()

    context, _ = make_certificate(tmp_path)
    async with await serve(handle, "127.0.0.1", 0, ssl=context, compression=None) as server:
        async with peer(tmp_path / "caller") as caller, peer(tmp_path / "relay") as relay:
            there = Address("127.0.0.1", server.sockets[0].getsockname()[1])
            with pytest.raises(RemoteProtocolError) as error:
                await caller.caller.presence(caller.meets(relay), there)
    assert error.value.reason == "flood"
    return str(error.value)


async def ended(end: object) -> None:
    async with asyncio.timeout(20):
        assert await asyncio.get_running_loop().sock_recv(end, 1) == b""  # type: ignore[arg-type]


@pytest.mark.claim("a-machine-that-floods-before-its-proof-is-dropped")
async def test_a_machine_that_floods_before_its_proof_is_dropped(tmp_path: Path, processed: Counter[Side]) -> None:
    text = await presence_at(tmp_path, pings)
    assert re.fullmatch(r"\d+ frames and \d+ bytes before it has proven a key", text)
    assert processed[CLIENT] <= InflowLimits().unproven_frames


@pytest.mark.claim("a-machine-that-floods-before-its-proof-is-dropped")
async def test_tiny_tls_records_before_the_proof_are_counted(tmp_path: Path) -> None:
    text = await presence_at(tmp_path, tiny_records)
    assert re.fullmatch(r"\d+ TLS records, more than are allowed", text)


@pytest.mark.claim("a-machine-that-floods-before-its-proof-is-dropped")
async def test_a_relay_that_floods_loses_its_tunnel(
    tmp_path: Path, processed: Counter[Side], caplog: pytest.LogCaptureFixture
) -> None:
    async with relaying(tmp_path) as (caller, relay):
        end = await caller.caller.tunnel(caller.meets(relay), relay.address, GATEWAY)
        before = processed[CLIENT]
        await pour(relay.port.tunnels[caller.key.public], PING)
        await ended(end)
        assert processed[CLIENT] - before < 200
    assert "the peer relay was dropped: more than 20 frames without a message a second" in caplog.messages


@pytest.mark.claim("a-machine-that-floods-before-its-proof-is-dropped")
async def test_a_relays_tiny_tls_records_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(records, "RECORDS_PER_S", 1.0)  # a busy machine sends fewer than the shipped rate
    monkeypatch.setattr(tunnel, "SILENT_S", 60.0)  # the frame that is not complete is no message
    async with relaying(tmp_path) as (caller, relay):
        end = await caller.caller.tunnel(caller.meets(relay), relay.address, GATEWAY)
        await tiny_records(relay.port.tunnels[caller.key.public], records.RECORDS_BURST + 2000)
        await ended(end)
    assert [one for one in caplog.messages if re.fullmatch(r"the peer relay was dropped: \d+ TLS records, .*", one)]
