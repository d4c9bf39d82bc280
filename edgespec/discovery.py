"""Finds gateways on the local network by mDNS. What is found is a hint: the pinned keys decide who is trusted."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from zeroconf import Error, ServiceInfo, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from edgespec.shared import mdns
from edgespec.shared.address import LINK_PATH, Address
from edgespec.shared.reduced import cause

log = logging.getLogger("edgespec.discovery")

RESOLVE_S = 3.0
MAX_FOUND = 64
"""Gateways remembered; anybody on the network can announce more."""
MAX_ADDRESSES = 8


@dataclass(frozen=True, slots=True)
class Found:
    """A gateway that announces itself. Nothing of it is proven."""

    name: str
    addresses: tuple[Address, ...]
    """Best first: IPv4, then IPv6, link-local ones last."""
    port: int
    key_hash: str
    """Key id (keystore.py) of the gateway's Ed25519 key."""


class Browser:
    """Keeps a list of the gateways that announce themselves, while interfaces and gateways come and go."""

    def __init__(self, only: Sequence[str] | None = None) -> None:
        """`only`: names of the interfaces to use, for tests; otherwise the sensible ones."""
        self.problem: str | None = None
        """Why mDNS does not work at present; None while it does."""
        self._only = only
        self._found: dict[str, Found] = {}
        self._changed = asyncio.Condition()
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._choice: list[str | int] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begins to listen. Where mDNS does not work, a warning says so and nothing is found until it does."""
        await self._follow()
        self._spawn(self._poll())

    async def close(self) -> None:
        """Stops listening."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(OSError, Error):
            if self._browser is not None:
                await self._browser.async_cancel()
            if self._zeroconf is not None:
                await self._zeroconf.async_close()
        self._zeroconf = self._browser = None

    def found(self, key_hash: str | None = None) -> list[Found]:
        """The gateways known now; with `key_hash` only those that announce this key id."""
        return [one for one in self._found.values() if key_hash in (None, one.key_hash)]

    async def wait(self, key_hash: str, timeout_s: float) -> list[Found]:
        """As `found`, after waiting for at least one; empty when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.found(key_hash))
        return self.found(key_hash)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(mdns.POLL_S)
            await self._follow()

    async def _follow(self) -> None:
        """Listens on the interfaces that there are now."""
        choice = [one.choice for one in mdns.interfaces(self._only)]
        if not choice:
            self._complain("no interface leads to a network")
            return
        try:
            if self._zeroconf is None:
                self._zeroconf = AsyncZeroconf(interfaces=choice)
                self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, mdns.SERVICE, handlers=[self._heard])
            elif choice != self._choice:
                await self._zeroconf.async_update_interfaces(choice)
            self._choice, self.problem = choice, None
        except (OSError, Error) as error:  # the port is taken, or multicast is off
            self._complain(cause(error))

    def _complain(self, why: str) -> None:
        if why != self.problem:
            self.problem = why
            log.warning("mDNS does not work (%s): set `gateway.address` in worker.toml to the gateway's address", why)

    def _heard(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        """Called by zeroconf on the event loop."""
        if state_change is ServiceStateChange.Removed:
            self._found.pop(name, None)
        elif name in self._found or len(self._found) + len(self._tasks) < MAX_FOUND:
            self._spawn(self._resolve(zeroconf, name))

    async def _resolve(self, zeroconf: Zeroconf, name: str) -> None:
        try:
            info = AsyncServiceInfo(mdns.SERVICE, name)
            found = None
            if await info.async_request(zeroconf, RESOLVE_S * 1000):
                found = read_announcement(info, "127.0.0.1" in self._choice)
        except Error:  # a name that may not be, or zeroconf is being closed
            found = None
        if found is None:
            log.debug("an announcement does not resolve or is not one of edgespec/1")
            return
        async with self._changed:
            self._found[name] = found
            self._changed.notify_all()

    def _spawn(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def find(timeout_s: float, key_hash: str | None = None, only: Sequence[str] | None = None) -> list[Found]:
    """The gateways that announce themselves within `timeout_s`; with `key_hash` it returns once that one is found.

    Never raises where mDNS does not work: a warning says so, and the list is empty.
    """
    browser = Browser(only)
    await browser.start()
    try:
        if key_hash is not None:
            return await browser.wait(key_hash, timeout_s)
        await asyncio.sleep(timeout_s)
        return browser.found()
    finally:
        await browser.close()


async def addresses_of(key_hash: str, timeout_s: float = 3.0) -> list[Address]:
    """Where the gateway with this key id may be, best first."""
    return [address for one in await find(timeout_s, key_hash) for address in one.addresses]


def read_announcement(info: ServiceInfo, loopback: bool = False) -> Found | None:
    """What an announcement says; None where it is not one of this protocol. Its content is anybody's.

    `loopback`: whether addresses of this very machine may be meant, which the network has no business to announce.
    """
    txt = info.decoded_properties
    key_hash = txt.get("kh") or ""
    if txt.get("v") != mdns.TXT_VERSION or txt.get("path") != LINK_PATH or not re.fullmatch(r"[0-9a-f]{16}", key_hash):
        return None
    hosts = sorted((host for host in info.parsed_scoped_addresses() if _is_of_use(host, loopback)), key=_rank)
    if not hosts or not info.port:
        return None
    name = "".join(c for c in info.name.removesuffix(f".{mdns.SERVICE}") if c.isprintable())
    return Found(name[:64], tuple(Address(host, info.port) for host in hosts[:MAX_ADDRESSES]), info.port, key_hash)


def _is_of_use(host: str, loopback: bool) -> bool:
    """Whether the address can be dialled from here: an IPv6 link-local one without its zone cannot."""
    address = ipaddress.ip_address(host)
    zoneless = isinstance(address, ipaddress.IPv6Address) and address.is_link_local and address.scope_id is None
    return not zoneless and (loopback or not address.is_loopback)


def _rank(host: str) -> tuple[int, bool]:
    address = ipaddress.ip_address(host)
    return address.version, address.is_link_local
