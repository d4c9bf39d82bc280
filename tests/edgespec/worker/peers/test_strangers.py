"""Strangers at the port for peers: floods, silence and half-open connections keep no peer out."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.protocol import SERVER

from edgespec.core.protocol.inflow import InflowLimits
from edgespec.shared.address import PAIR_PATH
from edgespec.shared.tls import client_context
from edgespec.worker.peers import port as peer_port
from tests.edgespec.worker.peers.test_port import GATEWAY, by_hand, exchanged, relaying, shaken, two
from tests.support.floods import closed, count_frames, frame, pour
from tests.support.sockets import dial
from tests.support.until import until


@pytest.mark.claim("half-open-connections-of-one-address-keep-no-peer-out")
async def test_half_open_connections_of_one_address_keep_no_peer_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of them begin a TLS handshake, the others send nothing; none hangs up."""
    monkeypatch.setattr(peer_port, "HANDSHAKE_S", 3.0)
    async with relaying(tmp_path) as (caller, relay), AsyncExitStack() as stack:
        admission = relay.port._server._acceptor.admission
        half_open = [stack.enter_context(dial(relay.address.port, "127.0.0.2")) for _ in range(2 * peer_port.BURST)]
        for sock in half_open[::2]:
            sock.sendall(b"\x16\x03\x01\x02\x00")  # header of a record of 512 bytes
        end = await caller.caller.tunnel(caller.meets(relay), relay.address, GATEWAY)
        assert await exchanged(end, b"there") == b"there"
        assert admission.unproven == peer_port.UNPROVEN_OF_SOURCE and admission.proven == 1
        assert [r.getMessage().split(": ")[-1] for r in caplog.records if "refused" in r.getMessage()] == [
            "a connection from 127.0.0.2 that had proven no key was dropped for a newer one (busy)",
            "127.0.0.2 opens too many connections (rate)",
        ]
        await until(lambda: admission.unproven == 0)
        assert await exchanged(end, b"still") == b"still"


@pytest.mark.claim("a-stranger-that-floods-is-dropped")
async def test_a_stranger_that_floods_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    processed = count_frames(monkeypatch)
    async with two(tmp_path) as (_, relay):
        async with connect(relay.address.url(PAIR_PATH), ssl=client_context(), proxy=None, compression=None) as ws:
            await pour(ws, frame(9))
            assert await closed(ws) in (4429, 1006)
        assert processed[SERVER] <= InflowLimits().unproven_frames
        await until(lambda: [r for r in caplog.records if "before it has proven a key" in r.getMessage()])


@pytest.mark.claim("a-proven-peer-that-does-not-hang-up-is-dropped")
async def test_a_proven_peer_that_does_not_hang_up_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_port, "PRESENCE_S", 0.1)
    async with two(tmp_path) as (caller, relay):
        caller.meets(relay)
        async with by_hand(relay) as channel:
            await shaken(channel, caller, relay, "presence")
            async with asyncio.timeout(20):
                assert await channel.reader.read() == b""
