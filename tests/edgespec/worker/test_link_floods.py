"""A gateway, or another machine at its address, that floods a worker: bounded work, then the worker reconnects."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.protocol import CLIENT, Side

from cloud_gateway.engine.exchange import LinkEvent, WorkerReady
from cloud_gateway.links.server import Links
from edgespec.core.errors import NoGatewayError
from edgespec.core.protocol.inflow import MAX_HEAD_BYTES, InflowLimits
from edgespec.core.protocol.messages import Open, Sampling
from edgespec.shared.address import Address
from edgespec.worker.link import keep_linked
from edgespec.worker.pair import pair
from tests.support.floods import count_frames, frame, pour
from tests.support.links import Daemon, GatewayUnderTest, Seen, make_certificate, serving, some_tree, worker_identity
from tests.support.pairing import make_worker, some_code
from tests.support.until import until

LIMITS = InflowLimits()
PING = frame(9, masked=False)
BEGIN, CONTINUE = frame(2, b"x", end=False, masked=False), frame(0, end=False, masked=False)


@pytest.fixture
def processed(monkeypatch: pytest.MonkeyPatch) -> Counter[Side]:
    return count_frames(monkeypatch)


async def flood(ws: ServerConnection) -> None:
    """A gateway that answers the upgrade and then only floods."""
    with contextlib.suppress(ConnectionClosed):
        ws.transport.write(BEGIN)
        await pour(ws, CONTINUE)
        await ws.wait_closed()


async def linking(gateway: GatewayUnderTest, daemon: Daemon, *addresses: Address) -> None:
    async def where() -> list[Address]:
        return [*addresses, gateway.address]

    await keep_linked(
        where, worker_identity(), gateway.pin, daemon, rng=random.Random(1), sleep=lambda s: asyncio.sleep(0)
    )


@pytest.mark.claim("a-flood-before-the-welcome-ends-that-attempt")
async def test_a_flood_before_the_welcome_ends_that_attempt(tmp_path: Path, processed: Counter[Side]) -> None:
    """Its TLS key is right, as a gateway's whose key was stolen, and it proves nothing."""
    daemon = Daemon()
    async with serving(tmp_path) as gateway:
        thief = await serve(flood, "127.0.0.1", 0, ssl=gateway.tls, compression=None)
        async with thief:
            wrong = Address("127.0.0.1", thief.sockets[0].getsockname()[1])
            task = asyncio.create_task(linking(gateway, daemon, wrong))
            await until(lambda: daemon.link)
            assert processed[CLIENT] <= LIMITS.unproven_frames + 8
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Eager(Seen):
    """An engine that has long prompts for a worker in the moment in which it is linked."""

    links: Links

    def post(self, event: LinkEvent) -> None:
        super().post(event)
        if isinstance(event, WorkerReady):
            for number in (1, 2, 3):
                self.links.send(event.worker, [Open(number, 1, 8192, [100_000] * 8192, Sampling())])


async def test_long_prompts_that_come_together_with_the_welcome_are_no_flood(tmp_path: Path) -> None:
    """They are more than an unproven peer may send; a busy worker, or one after a lost packet, reads all at once."""
    daemon, seen = Daemon(), Eager()
    async with serving(tmp_path, seen=seen) as gateway:
        seen.links = gateway.links
        task = asyncio.create_task(linking(gateway, daemon))
        await until(lambda: len(daemon.of("message")) == 3)
        assert daemon.of("down") == [] and len(seen.of("up")) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.claim("a-flood-before-the-welcome-ends-that-attempt")
async def test_a_linked_gateway_that_floods_is_left(tmp_path: Path, processed: Counter[Side]) -> None:
    daemon = Daemon()
    async with serving(tmp_path) as gateway:
        task = asyncio.create_task(linking(gateway, daemon))
        await until(lambda: daemon.link)
        ws, before = gateway.links.workers()[0].wire.ws, processed[CLIENT]
        await pour(ws, PING)
        await until(lambda: daemon.of("down"))
        assert daemon.of("down")[0] == ("flood",) and processed[CLIENT] - before < 200
        await until(lambda: daemon.link)
        assert daemon.link is not None
        daemon.link.send(some_tree())
        await until(lambda: gateway.seen.of("tree"))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_pairing_names_the_machine_whose_http_head_does_not_end(tmp_path: Path) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + bytes(2 * MAX_HEAD_BYTES))
        await reader.read()
        writer.close()

    context, pin = make_certificate(tmp_path)
    worker = make_worker(tmp_path)
    async with await asyncio.start_server(endless, "127.0.0.1", 0, ssl=context) as server:
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(NoGatewayError, match=f"at {address} is not an edgespec gateway: an HTTP head of more than"):
            await pair([address], some_code(pin), worker.key, "lab-7", worker.gateways)
