"""A gateway, or another machine at its address, that floods a worker: bounded work, then the worker reconnects."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.protocol import CLIENT, Side

from cloud_gateway.engine.exchange import LinkEvent, WorkerReady
from cloud_gateway.links.server import Links
from edgespec.core.protocol.messages import Open, Sampling
from edgespec.shared.address import Address
from edgespec.worker.link import keep_linked
from tests.support.floods import count_frames, frame, pour
from tests.support.links import Daemon, GatewayUnderTest, Seen, serving, some_tree, worker_identity
from tests.support.until import until

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
