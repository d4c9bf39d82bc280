"""Finding the paired gateway among fakes announced by mDNS: over real sockets, real TLS, real links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from edgespec.core.protocol.names import key_id
from edgespec.parts.mdns import interfaces
from edgespec.parts.mdns.browser import Browser
from edgespec.parts.mdns.records import MAX_ADDRESSES as MAX_ANNOUNCED
from edgespec.parts.mdns.table import MAX_ENTRIES
from edgespec.shared.address import Address
from edgespec.worker import dial
from edgespec.worker.dial import GatewayAddresses
from edgespec.worker.link import MAX_ADDRESSES
from tests.edgespec.worker.test_dialling import paired
from tests.edgespec.worker.test_link import Sleeps, running
from tests.parts.mdns.test_discovery import SERVICE, announcement
from tests.support.links import GATEWAY_KEY, Daemon, GatewayUnderTest, serving
from tests.support.until import until

KEY = GATEWAY_KEY.public


class Silent:
    """A machine that accepts connections and never sends anything."""

    def __init__(self) -> None:
        self.connections = 0
        self.address = Address("127.0.0.1", 1)

    async def hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await reader.read()
        await asyncio.sleep(3600)


@asynccontextmanager
async def silent(count: int) -> AsyncIterator[list[Silent]]:
    machines = [Silent() for _ in range(count)]
    async with AsyncExitStack() as opened:
        for machine in machines:
            server = await asyncio.start_server(machine.hold, "127.0.0.1", 0)
            opened.callback(server.close)  # without waiting for open connections
            machine.address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        yield machines


def browser() -> Browser:
    """A browser for the paired gateway, fed by hand, on loopback."""
    made = Browser(["lo"], wanted=key_id(KEY))
    made._dialled = tuple(network for one in interfaces.interfaces(["lo"]) for network in one.networks)
    return made


def announce(browser: Browser, name: str, *addresses: Address, key: bytes = KEY) -> None:
    """An announcement as it comes from the network."""
    hosts = [address.host for address in addresses]
    info = announcement(name, txt={"kh": key_id(key)}, parsed_addresses=hosts, port=addresses[0].port)
    browser._note(f"{name}.{SERVICE}", info)


async def linked(gateway: GatewayUnderTest, where: GatewayAddresses, sleeps: Sleeps | None = None) -> tuple[float, str]:
    """Seconds until a worker that knows these addresses is linked, and the address."""
    daemon = Daemon()
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with running(gateway, daemon, where=where.now, failed=where.failed, sleep=sleeps or Sleeps()):
        await until(lambda: daemon.link, 30)
        assert daemon.link is not None
        return loop.time() - began, str(daemon.link.address)


@pytest.mark.claim("two-silent-fakes-cost-nothing-where-the-last-address-is-good")
async def test_two_silent_fakes_cost_nothing_where_the_last_address_is_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.worker.link.Race", lambda: dial.Race(stagger_s=3600))  # on a busy machine too
    async with serving(tmp_path) as gateway, silent(2) as fakes:
        found = browser()
        sleeps = Sleeps()
        for number, fake in enumerate(fakes):
            announce(found, f"fake {number}", fake.address)
        where = GatewayAddresses(paired(tmp_path, gateway.address), KEY, "", found)
        assert (await where.now())[0] == gateway.address
        await linked(gateway, where, sleeps)
        assert sleeps.waits_s == [] and [fake.connections for fake in fakes] == [0, 0]


@pytest.mark.claim("two-silent-fakes-cost-nothing-where-the-last-address-is-good")
@pytest.mark.parametrize("real_comes", ["first", "last"])
async def test_64_fakes_do_not_keep_the_gateway_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_comes: str
) -> None:
    """The gateway has moved; the fakes' hosts are all over the network and refuse or are silent."""
    monkeypatch.setattr(dial, "DIAL_S", 0.3)
    async with serving(tmp_path) as gateway, silent(4) as held:
        found = browser()
        closed = [Address(f"127.1.{n // 200}.{n % 200 + 1}", 9) for n in range(MAX_ENTRIES)]
        fakes = [*(one.address for one in held), *closed]
        if real_comes == "first":
            announce(found, "real", gateway.address)
        for number, fake in enumerate(fakes):
            announce(found, f"fake {number}", fake)
        assert len(found.found()) == MAX_ENTRIES
        where = GatewayAddresses(paired(tmp_path, Address("127.0.0.1", 9)), KEY, "", found)

        async def look_again() -> None:  # as the browser does periodically, for those that found no room
            while True:
                announce(found, "real", gateway.address)
                await asyncio.sleep(0.05)

        task = asyncio.create_task(look_again())
        _, address = await linked(gateway, where)
        task.cancel()
        assert address == str(gateway.address)


async def test_untried_addresses_do_not_wait_for_the_back_off(tmp_path: Path) -> None:
    """The gateway is the last of 41 announced; the waits before the rounds add up to seconds, not to minutes."""
    async with serving(tmp_path) as gateway:
        found = browser()
        sleeps = Sleeps()
        for number in range(40):
            announce(found, f"fake {number}", Address(f"127.1.0.{number + 1}", 9))
        announce(found, "real", gateway.address)
        where = GatewayAddresses(paired(tmp_path, Address("127.0.0.1", 9)), KEY, "", found)
        await linked(gateway, where, sleeps)
        assert len(sleeps.waits_s) == 13 and max(sleeps.waits_s) <= 1


async def test_where_the_gateway_was_reached_is_tried_first_from_then_on(tmp_path: Path) -> None:
    gateways = paired(tmp_path, Address("10.0.0.1"))
    found = browser()
    announce(found, "real", Address("127.0.0.9", 7443), Address("127.0.0.8", 7443))
    where = GatewayAddresses(gateways, KEY, "gw.example.edu", found)
    announced = [Address("127.0.0.8"), Address("127.0.0.9")]
    known: Sequence[Address] = await where.now()
    assert known[:2] == [Address("10.0.0.1"), Address("gw.example.edu")] and sorted(map(str, known[2:])) == sorted(
        map(str, announced)
    )
    where.reached(Address("127.0.0.9"))
    await until(lambda: gateways.all()[0].address == "127.0.0.9:7443")
    assert (await where.now())[:2] == [Address("127.0.0.9"), Address("gw.example.edu")]
    gateways._file.path.write_text("damaged while the worker runs")
    where.reached(Address("127.0.0.8"))
    assert (await where.now())[:2] == [Address("127.0.0.9"), Address("gw.example.edu")], "as it was read last"
    assert MAX_ANNOUNCED <= MAX_ADDRESSES
