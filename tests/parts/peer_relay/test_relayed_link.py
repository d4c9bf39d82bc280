"""A worker without a way to its gateway, linked through peers: the real link inside the real tunnel."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgespec.core.errors import NoGatewayError
from edgespec.core.protocol.messages import Close, Decline
from edgespec.core.protocol.session import DEFAULT_TIMERS, Timers
from edgespec.parts.peer_relay.pairing import pair_through_peers
from edgespec.parts.peer_relay.service import Routes
from edgespec.shared.address import Address, Tunnelled
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateways
from edgespec.worker.dial import GatewayAddresses
from edgespec.worker.link import TUNNELLED_SETTLED_S
from tests.edgespec.worker.test_link import Sleeps, running
from tests.parts.peer_relay.daemons import Peer, peer
from tests.support.links import GATEWAY_KEY, Daemon, GatewayUnderTest, serving
from tests.support.pairing import Operator, served, some_code
from tests.support.until import until

KEY = GATEWAY_KEY.public
UNREACHABLE = Address("127.0.0.1", 1)


@dataclass
class Campus:
    """A worker, two relays and a gateway that only the relays reach."""

    worker: Peer
    relays: list[Peer]
    gateway: GatewayUnderTest
    where: GatewayAddresses
    daemon: Daemon

    @property
    def through(self) -> int | None:
        """Port of the relay in use."""
        link = self.daemon.link
        return link.address.port if link is not None and isinstance(link.address, Tunnelled) else None


@asynccontextmanager
async def campus(
    tmp_path: Path, behind: Address | None = None, timers: Timers = DEFAULT_TIMERS, **options: Any
) -> AsyncIterator[Campus]:
    """`behind`: what the first relay takes for the gateway, if it lies."""
    async with AsyncExitStack() as opened:
        enter = opened.enter_async_context
        gateway = await enter(serving(tmp_path))
        worker = await enter(peer(tmp_path / "worker"))
        relays = [await enter(peer(tmp_path / name)) for name in ("relay-1", "relay-2")]
        for number, relay in enumerate(relays):
            worker.meets(relay)
            relay.gateways[KEY] = [behind if behind and not number else gateway.address]
        gateways = PairedGateways(tmp_path / "keys")
        gateways.add(KEY, bytes(32), "gw", str(UNREACHABLE), 1)
        routes = Routes(worker.peers, worker.caller, lambda: KEY, None)

        async def ways() -> Sequence[Tunnelled]:
            return routes.now()

        daemon = Daemon()
        where = GatewayAddresses(gateways, KEY, "", None, ways)
        one = Campus(worker, relays, gateway, where, daemon)
        await enter(running(gateway, daemon, where=where.now, failed=where.failed, timers=timers, **options))
        yield one


async def test_each_lost_relay_is_replaced_within_a_second(tmp_path: Path) -> None:
    """Links that lasted, by their own clock: the waits between do not grow from one to the next."""
    ticks = itertools.count(step=TUNNELLED_SETTLED_S)
    sleeps = Sleeps()
    async with campus(tmp_path, clock=lambda: next(ticks), sleep=sleeps) as one:
        for lost in range(6):
            await until(lambda lost=lost: one.through and len(one.daemon.of("up")) == lost + 1, 20)
            used = next(relay for relay in one.relays if relay.address.port == one.through)
            for tunnel in list(used.port.tunnels.values()):
                tunnel.writer.transport.abort()
            await until(lambda lost=lost: len(one.daemon.of("down")) == lost + 1, 20)
        await until(lambda: len(sleeps.waits_s) >= 6, 20)
    assert max(sleeps.waits_s) <= 1.0


@pytest.mark.claim("a-relay-that-leads-elsewhere-gets-nothing-and-is-left")
async def test_a_relay_with_a_gateway_of_its_own_gets_no_byte_of_the_link(tmp_path: Path) -> None:
    (tmp_path / "rogue").mkdir()
    async with serving(tmp_path / "rogue") as rogue, campus(tmp_path, rogue.address) as one:
        await until(lambda: one.through, 20)
        assert one.through == one.relays[1].address.port
        assert not rogue.seen.calls  # another TLS key: nothing was sent, not even a request


Change = Callable[[bytes, int], bytes | None]
"""Bytes from the gateway, and how many came before -> what the relay forwards; None: nothing ever again."""


@asynccontextmanager
async def meddling(change: Change) -> AsyncIterator[tuple[Address, list[int], bytearray]]:
    """A machine between the first relay and the gateway, whose port is put into the list: it changes what comes from
    there, and records what goes there.
    """
    port: list[int] = []
    recorded = bytearray()

    async def outwards(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            recorded.extend(data)
            sink.write(data)
        sink.close()

    async def inwards(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        total = 0
        while data := await source.read(65536):
            changed = change(data, total)
            total += len(data)
            sink.write(changed or b"")
        sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port[0])
        await asyncio.gather(outwards(reader, back), inwards(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1]), port, recorded
    finally:
        server.close()


HANDSHAKE_BYTES = 4000
"""Beyond what the gateway sends before a link is open, or soon after."""


def flipped(data: bytes, before: int) -> bytes:
    return bytes([*data[:-1], data[-1] ^ 1]) if before > HANDSHAKE_BYTES else data


def repeated(data: bytes, before: int) -> bytes:
    return data + data if before > HANDSHAKE_BYTES else data


def withheld(data: bytes, before: int) -> bytes | None:
    return data if before <= HANDSHAKE_BYTES else None


@pytest.mark.claim("a-relay-that-meddles-is-left-for-another")
@pytest.mark.parametrize("change", [flipped, repeated, withheld])
async def test_a_relay_that_meddles_is_left_for_another(tmp_path: Path, change: Change) -> None:
    """TLS inside the tunnel ends at a changed or repeated byte, and the session at silence; nothing wrong gets in."""
    timers = Timers(ping_every_s=0.02, unread_s=0.6, silent_s=0.6)
    async with meddling(change) as (between, port, _), campus(tmp_path, between, timers) as one:
        port.append(one.gateway.port)
        await until(lambda: one.through == one.relays[1].address.port, 20)
        assert not one.daemon.of("message")


@pytest.mark.claim("what-a-relay-records-shows-no-token-and-opens-nothing-again")
async def test_what_a_relay_records_shows_no_token_and_opens_nothing_again(tmp_path: Path) -> None:
    async with meddling(lambda data, before: data) as (between, port, recorded), campus(tmp_path, between) as one:
        port.append(one.gateway.port)
        one.relays[1].gateways.clear()
        await until(lambda: one.through and one.gateway.links.workers(), 20)
        assert one.through == one.relays[0].address.port and one.daemon.link is not None
        one.daemon.link.send(Decline(7, 1, "a reason that is easy to find"))
        await until(lambda: one.gateway.seen.of("decline"))
        (worker,) = one.gateway.links.workers()
        one.gateway.links.send(worker.id, [Close(1, 1, "done")])
        await until(lambda: one.daemon.of("message") == [(Close(1, 1, "done"),)])
        assert len(recorded) > 1000 and b"easy to find" not in recorded
        linked = len(one.gateway.seen.of("up"))
        reader, writer = await asyncio.open_connection("127.0.0.1", one.gateway.port)
        writer.write(recorded)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        assert len(one.gateway.seen.of("up")) == linked and len(one.gateway.seen.of("decline")) == 1


async def test_a_worker_pairs_with_its_gateway_through_a_peer(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway, peer(tmp_path / "worker") as worker, peer(tmp_path / "relay") as relay:
        relay.gateways[gateway.key.public] = [gateway.address]
        worker.meets(relay)
        person = Operator(gateway.desk)
        code = await person.code()
        paired = await pair_through_peers(KeyStore(tmp_path / "worker"), "lab-7", code)
        await person.done
        assert (paired.key, paired.spki, paired.address) == (gateway.key.public, gateway.spki, "")
        assert [one.key for one in gateway.workers.all()] == [worker.key.public]


async def test_without_a_linked_peer_the_error_says_so(tmp_path: Path) -> None:
    async with peer(tmp_path / "worker") as worker, peer(tmp_path / "relay") as relay:
        code = some_code(bytes(32))
        with pytest.raises(NoGatewayError, match="No peer is paired"):
            await pair_through_peers(KeyStore(tmp_path / "worker"), "lab-7", code)
        worker.meets(relay)
        with pytest.raises(NoGatewayError, match="The peer relay is linked to 0 gateways"):
            await pair_through_peers(KeyStore(tmp_path / "worker"), "lab-7", code)
