"""Floods of a gateway's link port, once for each place that bounds them: connections, records, frames, messages.

Those below the WebSocket's messages are frames that the library would answer or collect without asking anybody. They
are judged by the number of frames that the gateway's WebSocket library has processed, whatever the machine's speed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.protocol import SERVER, Side

from edgespec.core.protocol.inflow import InflowLimits
from tests.support.floods import FLOOD_FRAMES, closed, count_frames, frame, pour
from tests.support.links import client, raw, serving, some_tree, worker_identity
from tests.support.until import until

PING = frame(9)
BEGIN = frame(2, b"x", end=False)
CONTINUE_EMPTY = frame(0, end=False)
CONTINUE_BYTE = frame(0, b"x", end=False)
LIMITS = InflowLimits()


@pytest.fixture
def processed(monkeypatch: pytest.MonkeyPatch) -> Counter[Side]:
    return count_frames(monkeypatch)


async def pair(ws: ServerConnection) -> None:
    """A pairing that waits for its first message."""
    with contextlib.suppress(ConnectionClosed):
        await ws.recv()


@pytest.mark.claim("an-unproven-connection-has-64-frames")
@pytest.mark.parametrize(
    ("path", "first", "flood"), [("/link", b"", PING), ("/pair", BEGIN, CONTINUE_EMPTY)], ids=["link", "pair"]
)
async def test_an_unproven_connection_has_64_frames(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, processed: Counter[Side], path: str, first: bytes, flood: bytes
) -> None:
    async with serving(tmp_path, pair=pair) as gateway, client(gateway) as honest:
        before = processed[SERVER]
        async with raw(gateway, path) as ws:
            ws.transport.write(first)
            await pour(ws, flood)
            assert await closed(ws) in (4429, 1006)
        await until(lambda: gateway.links.rejected["flood"])
        assert processed[SERVER] - before <= LIMITS.unproven_frames + 8  # the honest worker's pongs come between
        assert [r.getMessage() for r in caplog.records if "flood" in r.getMessage()] != []
        assert len(caplog.records) == 1
        await honest.send(some_tree())
        await until(lambda: gateway.seen.of("tree"))


@pytest.mark.claim("a-worker-that-sends-frames-without-messages-loses-its-link")
@pytest.mark.parametrize(("first", "flood"), [(b"", PING), (BEGIN, CONTINUE_BYTE)], ids=["ping", "fragments"])
async def test_a_worker_that_sends_frames_without_messages_loses_its_link(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, processed: Counter[Side], first: bytes, flood: bytes
) -> None:
    other = worker_identity(b"o" * 32, "other")
    async with serving(tmp_path, paired=[other]) as gateway, client(gateway) as hostile, client(gateway, other) as two:
        await until(lambda: len(gateway.links.workers()) == 2)
        before = processed[SERVER]
        hostile.ws.transport.write(first)
        await pour(hostile.ws, flood)
        assert await closed(hostile.ws) in (4429, 1006)
        await until(lambda: gateway.seen.of("down"))
        assert gateway.seen.of("down")[0][1] == "flood" and gateway.links.rejected == {"flood": 1}
        assert processed[SERVER] - before <= LIMITS.idle_burst + 40
        assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
        await two.send(some_tree())
        await until(lambda: gateway.seen.of("tree"))


async def test_a_few_pings_are_answered(tmp_path: Path) -> None:
    """Another implementation, or a proxy between the two, may send WebSocket pings."""
    async with serving(tmp_path) as gateway, client(gateway) as linked:
        await until(gateway.links.workers)
        for _ in range(20):
            await (await linked.ws.ping())
        await linked.send(some_tree())
        await until(lambda: gateway.seen.of("tree"))


@pytest.mark.claim("a-connection-that-dies-in-a-flood-leaves-no-lines")
@pytest.mark.parametrize("proven", [False, True])
async def test_a_connection_that_dies_in_a_flood_leaves_no_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, proven: bool
) -> None:
    """asyncio logs each write to a dead socket; the library wrote one pong for each ping that it had read."""
    async with serving(tmp_path) as gateway:
        for _ in range(5):
            async with client(gateway) if proven else raw(gateway) as one:
                ws: ClientConnection = getattr(one, "ws", one)
                ws.transport.write(PING * FLOOD_FRAMES)
                ws.transport.abort()
        await until(lambda: not gateway.links.workers())
        await asyncio.sleep(0.1)
    assert [r.getMessage() for r in caplog.records if r.name == "asyncio"] == []


@pytest.mark.claim("a-flood-is-read-no-faster-than-allowed")
async def test_a_flood_is_read_no_faster_than_allowed(tmp_path: Path) -> None:
    inflow = InflowLimits(frames_per_s=200.0)
    async with serving(tmp_path, inflow=inflow) as gateway, client(gateway) as linked:
        began = asyncio.get_running_loop().time()
        for i in range(164):
            await linked.send(some_tree(1 + 2 * i))
        await until(lambda: len(gateway.seen.of("tree")) == 164)
        assert asyncio.get_running_loop().time() - began > 0.4  # 64 in a burst and 16 at once, then 84 at 200 a second
        assert not gateway.seen.of("down")
