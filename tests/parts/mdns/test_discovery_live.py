"""mDNS for real, on loopback."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from zeroconf import Zeroconf

from edgespec.core.protocol.names import key_id
from edgespec.parts.mdns import interfaces
from edgespec.parts.mdns.advertiser import Advertiser
from edgespec.parts.mdns.browser import Browser
from edgespec.parts.mdns.interfaces import Interface
from edgespec.shared.address import Address
from edgespec.shared.nearby import Announced
from tests.parts.mdns.browsing import found_by
from tests.support.until import until

pytestmark = pytest.mark.live
LO = ["lo"]
SPKI = b"t" * 32


@asynccontextmanager
async def announced(key: bytes, port: int, name: str = "live test") -> AsyncIterator[Advertiser]:
    advertiser = Advertiser(Announced(name, key, SPKI, "127.0.0.1", port), only=LO)
    advertiser.start()
    try:
        yield advertiser
    finally:
        await advertiser.close()


async def test_a_gateway_is_found_by_its_key_and_gone_when_it_stops() -> None:
    key = os.urandom(32)
    browser = Browser(only=LO)
    await browser.start()
    try:
        async with announced(key, 4001):
            started = time.monotonic()
            (found,) = await found_by(browser, key_id(key), 15)
            assert time.monotonic() - started < 10
            assert (found.addresses, found.key_hash) == ((Address("127.0.0.1", 4001),), key_id(key))
            assert found.name == f"live test {key_id(key)[:6]}"
            assert found in browser.found()
        await until(lambda: not browser.found(key_id(key)))
    finally:
        await browser.close()


async def test_the_browser_follows_gateways_that_come_and_go() -> None:
    one = os.urandom(32)
    two = os.urandom(32)
    browser = Browser(only=LO)
    await browser.start()
    try:
        assert await found_by(browser, key_id(one), 0.2) == []
        async with announced(one, 4001):
            assert len(await found_by(browser, key_id(one), 15)) == 1
            async with announced(two, 4002):  # the same name: distinguished by the key
                assert len(await found_by(browser, key_id(two), 15)) == 1
                assert len(browser.found(key_id(one))) == 1
            await until(lambda: not browser.found(key_id(two)))
            assert len(browser.found(key_id(one))) == 1
        assert browser.problem is None
    finally:
        await browser.close()


async def test_an_address_that_failed_is_asked_for_again() -> None:
    key = os.urandom(32)
    browser = Browser(only=LO)
    await browser.start()
    try:
        async with announced(key, 4001):
            (found,) = await found_by(browser, key_id(key), 15)
            await asyncio.sleep(2)  # until it has been announced for the last time
            stale = Address("127.0.0.1", 9)
            (name,) = (name for name, entry in browser._found._entries.items() if entry.value is found)
            browser._found.put(name, ["127.0.0.1"], replace(found, addresses=(stale,)))
            assert browser._zeroconf is not None
            cache = browser._zeroconf.zeroconf.cache  # as after two minutes: the port's record is out of date
            cache.async_remove_records(list(cache.async_entries_with_name(name)))
            assert [machine.addresses[0].port for machine in browser.found(key_id(key))] == [9]
            browser.failed(stale)
            await until(lambda: [machine.addresses[0].port for machine in browser.found(key_id(key))] == [4001])
    finally:
        await browser.close()


async def test_after_a_suspend_both_sides_speak_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    suspended = 5.0
    asked = list[str]()
    spoken = list[str]()
    monkeypatch.setattr(interfaces, "suspended_s", lambda: suspended)
    monkeypatch.setattr(interfaces, "POLL_S", 0.05)
    query = Browser._query
    announce = Advertiser._announce

    async def counted_query(self: Browser, zeroconf: Zeroconf) -> None:
        asked.append("query")
        await query(self, zeroconf)

    async def counted_announce(self: Advertiser, usable: Sequence[Interface]) -> None:
        spoken.append("announcement")
        await announce(self, usable)

    monkeypatch.setattr(Browser, "_query", counted_query)
    monkeypatch.setattr(Advertiser, "_announce", counted_announce)
    key = os.urandom(32)
    browser = Browser(only=LO)
    await browser.start()
    try:
        async with announced(key, 4001) as advertiser:
            await found_by(browser, key_id(key), 15)
            await until(lambda: advertiser._announced)
            await asyncio.sleep(0.3)
            assert (len(asked), len(spoken)) == (1, 1)
            suspended += 0.5  # clocks that are read one after the other differ a little
            await asyncio.sleep(0.3)
            assert (len(asked), len(spoken)) == (1, 1)
            suspended += 600
            await until(lambda: (len(asked), len(spoken)) == (2, 2))
            assert await found_by(browser, key_id(key), 15)
    finally:
        await browser.close()
