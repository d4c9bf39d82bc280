"""Finds gateways, or peers, on the local network by mDNS."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import random
from collections.abc import Callable, Sequence

from zeroconf import DNSPointer, Error, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from edgespec.parts.mdns import interfaces
from edgespec.parts.mdns.interfaces import Network
from edgespec.parts.mdns.records import PRIVATE, read_announcement, service_type
from edgespec.parts.mdns.table import Announcements
from edgespec.shared.address import Address
from edgespec.shared.log_text import cause
from edgespec.shared.nearby import GATEWAY, Finder, Found, Kind

log = logging.getLogger("edgespec.parts.mdns.browser")

RESOLVE_S = 3.0
MAX_RESOLVING = 32
"""Announcements resolved at a time; a correct gateway sends its records with the announcement."""
MAX_SEEN_AGAIN = 64
"""Announcements that found no room; they are checked again each time the interfaces are."""


class Browser(Finder):
    """The current list of announced machines, while interfaces and machines come and go."""

    method = "mDNS"
    needs = "UDP port 5353 and multicast 224.0.0.251 in firewall and wireless network"
    problem: str | None = None

    def __init__(
        self,
        only: Sequence[str] | None = None,
        *,
        wanted: str | None = None,
        networks: Sequence[str] = (),
        kind: Kind = GATEWAY,
    ) -> None:
        """`only`: names of the interfaces to use, for tests; otherwise those of `interfaces.interfaces`.

        `wanted`: key id of the one gateway to look for; `networks`: of its address, besides private ones.
        """
        self._only = only
        self._kind = kind
        self._service = service_type(kind)
        self._wanted = wanted
        self._networks = tuple(ipaddress.ip_network(network) for network in networks)
        self._found: Announcements[Found] = Announcements()
        self._dialled: tuple[Network, ...] = ()
        self._changed = asyncio.Event()
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._choice: list[str | int] = []
        self._wakes = interfaces.Wakes()
        self._polling: asyncio.Task[None] | None = None
        self._resolving: dict[asyncio.Task[None], None] = {}
        """Oldest first."""

    async def start(self) -> None:
        """Starts to listen. If mDNS does not work, it logs a warning and finds nothing until it does."""
        await self._follow()
        self._polling = asyncio.create_task(self._poll())

    async def close(self) -> None:
        tasks = [*self._resolving, *([self._polling] if self._polling is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(OSError, Error):
            if self._browser is not None:
                await self._browser.async_cancel()
            if self._zeroconf is not None:
                await self._zeroconf.async_close()
        self._zeroconf = self._browser = None

    def found(self, key_hash: str | None = None) -> list[Found]:
        """The current gateways, fewest failures first; with `key_hash` only those with this key id."""
        return [one for one in self._found.values() if key_hash in (None, one.key_hash)]

    def failed(self, address: Address) -> None:
        """Records that the wanted gateway is not at this address: others are tried first, and may replace it.

        An announcement whose records are out of date, as after a suspend, is queried again.
        """
        names = self._found.failed(lambda one: address in one.addresses)
        if self._zeroconf is not None:
            for name in names:
                self._look(self._zeroconf.zeroconf, name)

    def rotated(self, key_hash: str) -> None:
        self._wanted = key_hash

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(interfaces.POLL_S)
            await self._follow()
            self._look_again()

    async def _follow(self) -> None:
        """Listens on the current interfaces."""
        usable = interfaces.interfaces(self._only)
        choice = [interface.choice for interface in usable]
        here = [network for interface in usable for network in interface.networks]
        self._dialled = (*PRIVATE, *self._networks, *here)
        if not choice:
            self._choice = []
            self._complain("no interface leads to a network")
            return

        try:
            if self._zeroconf is None:
                self._zeroconf = AsyncZeroconf(interfaces=choice)
            elif choice != self._choice:
                await self._zeroconf.async_update_interfaces(choice)
            if self._wakes.happened() or choice != self._choice:
                await self._query(self._zeroconf.zeroconf)
            self._choice = choice
            self.problem = None
        except (OSError, Error) as error:  # the port is taken, or multicast is off
            self._complain(cause(error))

    async def _query(self, zeroconf: Zeroconf) -> None:
        """Asks who is there. A browser of zeroconf does so four times when it starts, and later only for what it knows,
        while gateways in a network that this machine joins have no reason to announce themselves.
        """
        if self._browser is not None:
            await self._browser.async_cancel()
        self._browser = AsyncServiceBrowser(zeroconf, self._service, handlers=[self._on_change])

    def _complain(self, why: str) -> None:
        if why != self.problem:
            self.problem = why
            log.warning("mDNS does not work (%s): set `gateway.address` in worker.toml to the gateway's address", why)

    def _on_change(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        """Called by zeroconf on the event loop."""
        if state_change is ServiceStateChange.Removed:
            self._found.remove(name)
        else:
            self._look(zeroconf, name)

    def _look_again(self) -> None:
        """Checks the announcements that found no room when they arrived."""
        if self._zeroconf is None:
            return

        zeroconf = self._zeroconf.zeroconf
        records = zeroconf.cache.async_entries_with_name(self._service)
        names = {record.alias for record in records if isinstance(record, DNSPointer)}
        left = [name for name in names if name not in self._found]
        for name in random.sample(left, min(len(left), MAX_SEEN_AGAIN)):
            self._look(zeroconf, name)

    def _look(self, zeroconf: Zeroconf, name: str) -> None:
        """Reads an announcement whose records are present, or queries them; limited to MAX_RESOLVING at a time."""
        try:
            info = AsyncServiceInfo(self._service, name)
        except Error:  # an invalid name
            return
        if info.load_from_cache(zeroconf):
            self._note(name, info)
            return

        while len(self._resolving) >= MAX_RESOLVING:
            oldest = next(iter(self._resolving))
            del self._resolving[oldest]
            oldest.cancel()
        task = asyncio.create_task(self._resolve(zeroconf, name, info))
        self._resolving[task] = None
        task.add_done_callback(lambda done: self._resolving.pop(done, None))

    async def _resolve(self, zeroconf: Zeroconf, name: str, info: AsyncServiceInfo) -> None:
        with contextlib.suppress(Error):  # zeroconf is being closed
            if await info.async_request(zeroconf, RESOLVE_S * 1000):
                self._note(name, info)

    def _note(self, name: str, info: AsyncServiceInfo) -> None:
        found = read_announcement(info, self._dialled, self._kind)
        if found is None or self._wanted not in (None, found.key_hash):
            self._found.remove(name)  # its former content is withdrawn
            return
        if self._found.put(name, [address.host for address in found.addresses], found):
            self._changed.set()
