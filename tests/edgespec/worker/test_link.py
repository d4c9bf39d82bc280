"""A worker's link over real TLS: messages, returns, impostors, and gateways that flood."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.protocol import CLIENT, Side

from cloud_gateway.engine.exchange import LinkEvent, WorkerReady
from cloud_gateway.links.server import Links
from edgespec.core.errors import NoGatewayError, PairingError, RemoteProtocolError
from edgespec.core.protocol import messages as m
from edgespec.core.protocol.handshake import Pin
from edgespec.core.protocol.messages import Open, Sampling
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.signing import SigningKey
from edgespec.shared.address import Address
from edgespec.worker.link import Addresses, keep_linked
from tests.support.floods import count_frames, frame, pour
from tests.support.links import (
    HASH,
    Daemon,
    GatewayUnderTest,
    Seen,
    make_certificate,
    serving,
    some_tree,
    worker_identity,
)
from tests.support.until import until

ID = key_id(worker_identity().key.public)
OPEN = m.Open(1, 1, 3, [1, 2, 3], m.Sampling())


class Sleeps:
    """Replaces `asyncio.sleep`: records the waits and sleeps a thousandth of them."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        await asyncio.sleep(seconds / 1000)


@asynccontextmanager
async def running(
    gateway: GatewayUnderTest,
    daemon: Daemon,
    *,
    addresses: Sequence[Address] = (),
    where: Addresses | None = None,
    **options: Any,
) -> AsyncIterator[asyncio.Task[Any]]:
    """`keep_linked` in a task of its own."""

    async def here() -> Sequence[Address]:
        return addresses or [gateway.address]

    options = {"me": worker_identity(), "pin": gateway.pin, "rng": random.Random(1), "sleep": Sleeps()} | options
    task = asyncio.create_task(keep_linked(where or here, handler=daemon, **options))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_messages_go_both_ways(tmp_path: Path) -> None:
    daemon = Daemon()
    async with serving(tmp_path) as gateway, running(gateway, daemon):
        await until(lambda: gateway.links.workers() and daemon.link)
        for body in (OPEN, m.Share(1, 1, 1, 2)):
            gateway.links.send(ID, [body])
        await until(lambda: len(daemon.of("message")) == 2)
        assert daemon.of("message") == [(OPEN,), (m.Share(1, 1, 1, 2),)]
        assert daemon.link is not None and daemon.link.writable
        daemon.link.send(some_tree())
        daemon.link.send(m.Pause("the owner is back"))
        await until(lambda: gateway.seen.of("down"))
        assert gateway.seen.of("tree") == [(ID, some_tree())]
        await until(lambda: daemon.of("writable"))


async def test_it_sends_a_bye_when_cancelled(tmp_path: Path) -> None:
    daemon = Daemon()
    async with serving(tmp_path) as gateway:
        async with running(gateway, daemon):
            await until(lambda: daemon.link)
            link = daemon.link
        await until(lambda: gateway.seen.of("down"))
        assert gateway.seen.of("down") == [(ID, "bye: stopping")] and not gateway.links.rejected
        assert daemon.of("down") == [("stopping",)]
        assert link is not None
        link.send(some_tree())  # too late: silently dropped


@pytest.mark.claim("an-impostor-receives-nothing-and-the-real-gateway-is-found")
async def test_an_impostor_receives_nothing_and_the_real_gateway_is_found(tmp_path: Path) -> None:
    """mDNS is a hint only: a machine with another TLS key gets no byte, and the next address is tried."""
    (tmp_path / "impostor").mkdir()
    daemon = Daemon()
    received = bytearray()
    ended = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1000):
                received.extend(data)
        ended.set()
        writer.close()

    context, _ = make_certificate(tmp_path / "impostor")
    server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
    async with server, serving(tmp_path) as gateway:
        wrong = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        async with running(gateway, daemon, addresses=[wrong, gateway.address]):
            await until(lambda: daemon.link)
            await asyncio.wait_for(ended.wait(), 10)
            assert received == b"" and len(gateway.links.workers()) == 1


@pytest.mark.claim("the-upgrade-names-no-software")
async def test_the_upgrade_names_no_software(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, running(gateway, Daemon()):
        await until(gateway.links.workers)
        ws = gateway.links.workers()[0].wire.ws
        assert ws.request is not None and ws.response is not None
        assert "User-Agent" not in ws.request.headers and "Server" not in ws.response.headers


@pytest.mark.claim("a-gateway-with-another-signing-key-is-not-accepted")
async def test_a_gateway_with_another_signing_key_is_not_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = Daemon()
    sleeps = Sleeps()
    async with serving(tmp_path) as gateway:
        pin = Pin(SigningKey(b"x" * 32).public, gateway.pin.spki_hash)
        async with running(gateway, daemon, pin=pin, sleep=sleeps):
            await until(lambda: sleeps.waits_s)
            assert daemon.calls == [] and "gateway-key" in caplog.text


async def test_being_revoked_while_linked_is_final(tmp_path: Path) -> None:
    daemon = Daemon()
    async with serving(tmp_path) as gateway, running(gateway, daemon) as task:
        await until(gateway.links.workers)
        gateway.standing[worker_identity().key.public] = "revoked"
        gateway.links.revoke(worker_identity().key.public)
        with pytest.raises(PairingError, match="revoked"):
            await asyncio.wait_for(task, 20)
        assert daemon.of("down") == [("bye: revoked",)]


async def test_finding_no_address_is_not_final(caplog: pytest.LogCaptureFixture) -> None:
    rounds: list[int] = []

    async def later() -> Sequence[Address]:
        rounds.append(1)
        if len(rounds) == 3:
            raise NoGatewayError("enough")
        return []

    sleeps = Sleeps()
    pin = Pin(bytes(32), bytes(32))
    with pytest.raises(NoGatewayError):
        await keep_linked(later, worker_identity(), pin, Daemon(), rng=random.Random(1), sleep=sleeps)
    assert len(sleeps.waits_s) == 2 and "no gateway was found" in caplog.text


@pytest.mark.claim("a-gateway-that-accepts-and-closes-is-not-hammered")
async def test_a_gateway_that_accepts_and_closes_is_not_hammered(tmp_path: Path) -> None:
    """The trap of `async for ws in connect()`: thousands of attempts a second."""
    sleeps = Sleeps()
    daemon = Daemon(raises=RemoteProtocolError("prefix", "always"))
    async with serving(tmp_path) as gateway, running(gateway, daemon, sleep=sleeps):
        for attempt in range(1, 9):
            await until(lambda n=attempt: len(gateway.seen.of("up")) == n)
            gateway.links.send(ID, [m.Commit(1, 1, 3, [5], HASH)])
        await until(lambda: len(sleeps.waits_s) == 8)
    assert all(wait <= min(2.0**i, 90) for i, wait in enumerate(sleeps.waits_s))
    assert max(sleeps.waits_s) > 8


# --- back-pressure -----------------------------------------------------------------------------------------------


class Choke:
    """A TCP relay that can stop reading from the worker, as a full network would."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.flowing = asyncio.Event()
        self.flowing.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1024)
        await asyncio.gather(
            self._pump(reader, up_writer, self.flowing), self._pump(up_reader, writer, None), return_exceptions=True
        )

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event | None
    ) -> None:
        try:
            while data := await reader.read(1024):
                if gate is not None:
                    await gate.wait()
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def choked(gateway: GatewayUnderTest) -> AsyncIterator[tuple[Choke, Address]]:
    choke = Choke(gateway.port)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    server = await asyncio.start_server(choke.serve, sock=listener, limit=1024)
    async with server:
        yield choke, Address("127.0.0.1", listener.getsockname()[1])


class Counting(Daemon):
    """Counts the calls of `on_writable` for a link that is not."""

    busy_calls = 0

    def on_writable(self) -> None:
        super().on_writable()
        self.busy_calls += self.link is not None and not self.link.writable


async def test_a_busy_link_is_not_writable_until_it_has_drained(tmp_path: Path) -> None:
    """Nodes that cannot be sent stay in the tree; `on_writable` follows when they can."""
    daemon = Counting()
    async with serving(tmp_path) as gateway, choked(gateway) as (choke, address):
        async with running(gateway, daemon, addresses=[address]):
            await until(lambda: daemon.link)
            link = daemon.link
            sent = 0
            assert link is not None
            choke.flowing.clear()
            while link.writable and sent < 20_000:
                sent += 1
                link.send(some_tree(2 * sent - 1))
                await asyncio.sleep(0)
            assert not link.writable and sent < 300  # of 256 bytes: the buffers of this machine hold far more
            calls = len(daemon.of("writable"))
            choke.flowing.set()
            await until(lambda: len(daemon.of("writable")) == calls + 1)
            assert link.writable and daemon.busy_calls == 0
            await until(lambda: len(gateway.seen.of("tree")) == sent)


PING = frame(9, masked=False)


@pytest.fixture
def processed(monkeypatch: pytest.MonkeyPatch) -> Counter[Side]:
    return count_frames(monkeypatch)


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
    daemon = Daemon()
    seen = Eager()
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
        ws = gateway.links.workers()[0].wire.ws
        before = processed[CLIENT]
        await pour(ws, PING)
        await until(lambda: daemon.of("down"))
        assert daemon.of("down")[0] == ("flood",) and processed[CLIENT] - before < 200
        await until(lambda: daemon.link)
        assert daemon.link is not None
        daemon.link.send(some_tree())
        await until(lambda: gateway.seen.of("tree"))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
