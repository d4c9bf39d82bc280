"""Guarded ports over real sockets: shares of the places, rates, and TLS records on the gateway's link port."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection

from edgespec.parts.flood_guard import records
from edgespec.parts.flood_guard.guards import FloodGuards
from edgespec.parts.flood_guard.sources import LINKS
from edgespec.shared.guards import PortBounds
from tests.support.floods import closed
from tests.support.links import client, raw, serving
from tests.support.ports import accepting, says
from tests.support.sockets import dial
from tests.support.until import until

FEW = PortBounds(total=16, unproven=8)
WIDE = replace(LINKS, unproven_share=0.4, rate_per_s=1000.0, burst=1000, total_rate_per_s=1000.0, total_burst=1000)
GUARDS = FloodGuards(WIDE, WIDE)


@pytest.mark.claim("a-newcomer-gets-in-though-one-source-holds-its-share")
async def test_a_newcomer_gets_in_though_one_source_holds_its_share() -> None:
    async with accepting(FEW, GUARDS) as (acceptor, port, refused):
        with ExitStack() as stack:
            flood = [stack.enter_context(dial(port)) for _ in range(20)]
            other = stack.enter_context(dial(port, "127.0.0.2"))
            assert await says(other, b"key") == b"ok"
            assert len(acceptor.unproven) == 3 and refused == ["busy"] * 17
            assert [await says(sock, b"hello") for sock in flood[-3:]] == [b"hello"] * 3
            assert await says(flood[0], b"hello") == b""


async def test_refusals_are_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    guards = FloodGuards(LINKS, replace(LINKS, rate_per_s=0.001, burst=2))
    async with accepting(FEW, guards) as (_, port, refused):
        for _ in range(200):
            dial(port).close()
        await until(lambda: len(refused) == 198)
    assert set(refused) == {"rate"}
    assert [record.getMessage() for record in caplog.records] == [
        "test port: connection refused: 127.0.0.1 opens too many connections (rate)"
    ]


@pytest.mark.claim("tiny-tls-records-are-counted")
@pytest.mark.parametrize("proven", [False, True])
async def test_tiny_tls_records_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proven: bool) -> None:
    """A frame in records of one byte each: few frames and few bytes, and as much work as for full records."""
    monkeypatch.setattr(records, "RECORDS_PER_S", 1.0)  # a busy machine sends fewer than the shipped rate
    async with serving(tmp_path, guards=FloodGuards(LINKS, LINKS)) as gateway:
        async with client(gateway) if proven else raw(gateway) as one:
            ws: ClientConnection = getattr(one, "ws", one)
            count = max(records.MAX_UNPROVEN_RECORDS, proven * records.RECORDS_BURST) + 2000
            ws.transport.write(bytes([0x82, 0xFE, 0xEA, 0x60]) + bytes(4))
            for sent in range(count):
                ws.transport.write(b"x")
                if sent % 100 == 0:
                    await asyncio.sleep(0)
            assert await closed(ws) == 1006
        await until(lambda: gateway.links.rejected["flood"] == 1)
