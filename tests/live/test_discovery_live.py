"""mDNS for real, on loopback."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from zeroconf import ServiceInfo, Zeroconf
from zeroconf.asyncio import AsyncZeroconf

from edgespec.core.pairing.exchange import Party
from edgespec.core.protocol.names import key_id
from edgespec.shared import mdns
from edgespec.shared.address import Address
from edgespec.shared.advertise import Advertiser
from edgespec.shared.paired import PairedGateways
from edgespec.worker.addresses import GatewayAddresses
from edgespec.worker.discovery import Browser, find
from edgespec.worker.pair import Pairing, pair_nearby
from tests.edgespec.worker.test_link import running
from tests.edgespec.worker.test_rogue import rogue
from tests.support.links import Daemon, serving
from tests.support.pairing import Operator, make_worker, served
from tests.support.until import until

pytestmark = pytest.mark.live
LO = ["lo"]
SPKI = b"t" * 32


@asynccontextmanager
async def announced(key: bytes, port: int, name: str = "live test") -> AsyncIterator[Advertiser]:
    advertiser = Advertiser(name, key, SPKI, "127.0.0.1", port, only=LO)
    advertiser.start()
    try:
        yield advertiser
    finally:
        await advertiser.close()


async def test_a_gateway_is_found_by_its_key_and_gone_when_it_stops() -> None:
    key = os.urandom(32)
    async with announced(key, 4001):
        started = time.monotonic()
        (found,) = await find(15, key_id(key), only=LO)
        assert time.monotonic() - started < 10
        assert (found.addresses, found.key_hash) == ((Address("127.0.0.1", 4001),), key_id(key))
        assert found.name == f"live test {key_id(key)[:6]}"
        assert found in await find(5, only=LO)
    assert await find(1.5, key_id(key), only=LO) == []


async def test_the_browser_follows_gateways_that_come_and_go() -> None:
    one, two = os.urandom(32), os.urandom(32)
    browser = Browser(only=LO)
    await browser.start()
    try:
        assert await browser.wait(key_id(one), 0.2) == []
        async with announced(one, 4001):
            assert len(await browser.wait(key_id(one), 15)) == 1
            async with announced(two, 4002):  # the same name: distinguished by the key
                assert len(await browser.wait(key_id(two), 15)) == 1
                assert len(browser.found(key_id(one))) == 1
            await until(lambda: not browser.found(key_id(two)))
            assert len(browser.found(key_id(one))) == 1
        assert browser.problem is None
    finally:
        await browser.close()


async def test_a_gateway_that_moves_to_another_port_is_found_there() -> None:
    key = os.urandom(32)
    browser = Browser(only=LO)
    await browser.start()
    try:
        for port in (4001, 4002):
            async with announced(key, port):
                await until(lambda: [found.port for found in browser.found(key_id(key))] == [port])  # noqa: B023
    finally:
        await browser.close()


async def test_an_address_that_failed_is_asked_for_again() -> None:
    key = os.urandom(32)
    browser = Browser(only=LO)
    await browser.start()
    try:
        async with announced(key, 4001):
            (found,) = await browser.wait(key_id(key), 15)
            await asyncio.sleep(2)  # until it has been announced for the last time
            stale = Address("127.0.0.1", 9)
            (name,) = (name for name, entry in browser._found._entries.items() if entry.value is found)
            browser._found.put(name, ["127.0.0.1"], replace(found, addresses=(stale,), port=9))
            assert browser._zeroconf is not None
            cache = browser._zeroconf.zeroconf.cache  # as after two minutes: the port's record is out of date
            cache.async_remove_records(list(cache.async_entries_with_name(name)))
            assert [one.port for one in browser.found(key_id(key))] == [9]
            browser.failed(stale)
            await until(lambda: [one.port for one in browser.found(key_id(key))] == [4001])
    finally:
        await browser.close()


async def test_after_a_suspend_both_sides_speak_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    suspended, asked, spoken = 5.0, list[str](), list[str]()
    monkeypatch.setattr(mdns, "suspended_s", lambda: suspended)
    monkeypatch.setattr(mdns, "POLL_S", 0.05)
    query, announce = Browser._query, Advertiser._announce

    async def counted_query(self: Browser, zeroconf: Zeroconf) -> None:
        asked.append("query")
        await query(self, zeroconf)

    async def counted_announce(self: Advertiser, interfaces: Sequence[mdns.Interface]) -> None:
        spoken.append("announcement")
        await announce(self, interfaces)

    monkeypatch.setattr(Browser, "_query", counted_query)
    monkeypatch.setattr(Advertiser, "_announce", counted_announce)
    key = os.urandom(32)
    browser = Browser(only=LO)
    await browser.start()
    try:
        async with announced(key, 4001) as advertiser:
            await browser.wait(key_id(key), 15)
            await until(lambda: advertiser._announced)
            await asyncio.sleep(0.3)
            assert (len(asked), len(spoken)) == (1, 1)
            suspended += 0.5  # clocks that are read one after the other differ a little
            await asyncio.sleep(0.3)
            assert (len(asked), len(spoken)) == (1, 1)
            suspended += 600
            await until(lambda: (len(asked), len(spoken)) == (2, 2))
            assert await browser.wait(key_id(key), 15)
    finally:
        await browser.close()


async def test_announcements_of_others_are_left_out() -> None:
    key = key_id(os.urandom(32))
    foreign = ServiceInfo(
        mdns.GATEWAY.service,
        f"foreign {key}.{mdns.GATEWAY.service}",
        parsed_addresses=["127.0.0.1"],
        port=1,
        properties={"v": "9", "kh": key, "path": "/link"},
        server=f"{key}.local.",
    )
    zeroconf = AsyncZeroconf(interfaces=["127.0.0.1"])
    try:
        await zeroconf.async_register_service(foreign)
        assert await find(3, key, only=LO) == []
    finally:
        await zeroconf.async_close()


@asynccontextmanager
async def copied(kh: str, th: bytes, port: int, names: Iterable[str]) -> AsyncIterator[None]:
    """Announcements by somebody else, with any hashes."""
    zeroconf = AsyncZeroconf(interfaces=["127.0.0.1"])
    infos = [
        ServiceInfo(
            mdns.GATEWAY.service,
            f"{name}.{mdns.GATEWAY.service}",
            parsed_addresses=["127.0.0.1"],
            port=port,
            properties={"v": "1", "kh": kh, "th": th.hex(), "path": "/link"},
            server=f"{name.replace(' ', '-')}.local.",
        )
        for name in names
    ]
    try:
        await asyncio.gather(*[zeroconf.async_register_service(info) for info in infos])
        yield
    finally:
        await zeroconf.async_close()


@pytest.mark.parametrize("copies", [True, False])
async def test_a_rogue_advertiser_is_skipped_when_pairing(tmp_path: Path, copies: bool) -> None:
    """One that shows the gateway's own hashes is dialled and left; one that shows its own key is not even dialled."""
    async with served(tmp_path) as gateway, rogue(tmp_path / "rogue") as (machine, address):
        operator, worker = Operator(gateway.desk), make_worker(tmp_path)
        code = await operator.code()
        theirs = os.urandom(32)
        while code.fits(theirs):
            theirs = os.urandom(32)
        shown = (key_id(gateway.key.public), gateway.spki) if copies else (key_id(theirs), theirs)
        real = Advertiser("dept", gateway.key.public, gateway.spki, "127.0.0.1", gateway.address.port, only=LO)
        async with copied(*shown, address.port, ["rogue"]):
            pairing = Pairing(code, Party(worker.key, "lab-7"), worker.gateways)
            task = asyncio.create_task(pair_nearby(pairing, code, Browser(LO), 20))
            await until(lambda: not copies or machine.connections)  # the rogue is first
            real.start()
            stored = await task
            await real.close()
        assert stored.key == gateway.key.public and operator.codes == [str(code)]
        assert machine.connections == int(copies) and not machine.received


async def test_a_worker_finds_its_gateway_among_fakes_on_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway has moved; fakes with its hashes name a machine of another key, and were there before it."""
    monkeypatch.setattr(mdns, "POLL_S", 0.2)
    async with serving(tmp_path) as gateway, rogue(tmp_path / "rogue") as (machine, address):
        kh = key_id(gateway.pin.gateway_key)
        browser = Browser(LO, wanted=kh)
        await browser.start()
        gateways = PairedGateways(tmp_path / "keys")
        gateways.add(gateway.pin.gateway_key, gateway.pin.spki_hash, "gw", "127.0.0.1:9", 1)
        where = GatewayAddresses(gateways, gateway.pin.gateway_key, "", browser)
        real = Advertiser("gw", gateway.pin.gateway_key, gateway.pin.spki_hash, "127.0.0.1", gateway.port, only=LO)
        daemon = Daemon()
        async with copied(kh, gateway.pin.spki_hash, address.port, [f"fake {n}" for n in range(8)]):
            await until(lambda: browser.found(kh))
            async with running(gateway, daemon, where=where.now, failed=where.failed):
                real.start()
                await until(lambda: daemon.link, 30)
                assert daemon.link is not None and daemon.link.address == gateway.address
        await real.close()
        await browser.close()
        assert not machine.received
