"""Finds gateways, or peers, on the local network by mDNS. Results are hints: keys decide which is trusted."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import random
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from zeroconf import DNSPointer, Error, ServiceInfo, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from edgespec.shared import mdns
from edgespec.shared.address import Address
from edgespec.shared.log_text import cause
from edgespec.shared.mdns import Kind, Network

MAX_ENTRIES = 64
MAX_PER_HOST = 4
"""A machine may run a few gateways, for several models."""

T = TypeVar("T")


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    hosts: frozenset[str]
    failures: int = 0


class Announcements(Generic[T]):
    """A bounded set of announced values, by their names, in which a flood of false ones cannot displace a true one.

    Only dialling shows whether an announcement is true. So an entry is replaced only by a new one, and only after a
    dial to it failed: false entries cannot displace one that has not failed, and are replaced as they are tried. The
    number of entries for one host is limited, so that announcing it repeatedly has no effect.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry[T]] = {}

    def values(self) -> list[T]:
        """Fewest failures first, then oldest first."""
        return [entry.value for entry in sorted(self._entries.values(), key=lambda entry: entry.failures)]

    def put(self, name: str, hosts: Collection[str], value: T) -> bool:
        """Adds or replaces an announcement that names these hosts; False if there is no room for it."""
        known = self._entries.pop(name, None)
        if known is not None and known.value == value:
            self._entries[name] = known
            return True

        victim = self._victim_for(frozenset(hosts))
        if victim is not None:
            if self._entries[victim].failures == 0:
                if known is not None:
                    self._entries[name] = known
                return False
            del self._entries[victim]
        self._entries[name] = _Entry(value, frozenset(hosts))
        return True

    def remove(self, name: str) -> None:
        self._entries.pop(name, None)

    def failed(self, tried: Callable[[T], bool]) -> list[str]:
        """Counts a failure for each announcement for which `tried` holds, and returns their names."""
        names = [name for name, entry in self._entries.items() if tried(entry.value)]
        for name in names:
            self._entries[name].failures += 1
        return names

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def _victim_for(self, hosts: frozenset[str]) -> str | None:
        """The entry to remove for a new one with these hosts: the one that failed most; None while there is room."""
        for host in hosts:
            same = [name for name, entry in self._entries.items() if host in entry.hosts]
            if len(same) >= MAX_PER_HOST:
                return max(same, key=lambda name: self._entries[name].failures)
        if len(self._entries) >= MAX_ENTRIES:
            return max(self._entries, key=lambda name: self._entries[name].failures)

        return None


log = logging.getLogger("edgespec.worker.discovery")

RESOLVE_S = 3.0
MAX_RESOLVING = 32
"""Announcements resolved at a time; a correct gateway sends its records with the announcement."""
MAX_SEEN_AGAIN = 64
"""Announcements that found no room; they are checked again each time the interfaces are."""
MAX_ADDRESSES = 4
"""Those of one announcement that count."""
PRIVATE: tuple[Network, ...] = tuple(
    ipaddress.ip_network(network)
    for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7", "fe80::/10")
)
"""Networks of announced addresses, besides those of this machine's interfaces (RFC 1918, 3927, 4193, 4291).

Anybody on the network can announce any address, which must not make all workers there dial a host of the internet.
"""


@dataclass(frozen=True, slots=True)
class Found:
    """An announced gateway. Nothing of it is authenticated."""

    name: str
    addresses: tuple[Address, ...]
    """Best first: IPv4, then IPv6, link-local ones last."""
    port: int
    key_hash: str
    """Key id (core/names.py) of the gateway's Ed25519 key."""
    tls_hash: bytes
    """SHA-256 of the gateway's public TLS key."""


class Browser:
    """The current list of announced gateways, while interfaces and gateways come and go."""

    def __init__(
        self,
        only: Sequence[str] | None = None,
        *,
        wanted: str | None = None,
        networks: Sequence[str] = (),
        kind: Kind = mdns.GATEWAY,
    ) -> None:
        """`only`: names of the interfaces to use, for tests; otherwise those of `mdns.interfaces`.

        `wanted`: key id of the one gateway to look for; `networks`: of its address, besides private ones.
        """
        self.problem: str | None = None
        """Why mDNS does not work at present; None while it does."""
        self._only = only
        self._kind = kind
        self.wanted = wanted
        self._networks = tuple(ipaddress.ip_network(network) for network in networks)
        self._found: Announcements[Found] = Announcements()
        self._dialled: tuple[Network, ...] = ()
        self._changed = asyncio.Event()
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._choice: list[str | int] = []
        self._wakes = mdns.Wakes()
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

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Waits until the condition holds, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(mdns.POLL_S)
            await self._follow()
            self._look_again()

    async def _follow(self) -> None:
        """Listens on the current interfaces."""
        interfaces = mdns.interfaces(self._only)
        choice = [one.choice for one in interfaces]
        self._dialled = (*PRIVATE, *self._networks, *(network for one in interfaces for network in one.networks))
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
        self._browser = AsyncServiceBrowser(zeroconf, self._kind.service, handlers=[self._on_change])

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
        records = zeroconf.cache.async_entries_with_name(self._kind.service)
        names = {record.alias for record in records if isinstance(record, DNSPointer)}
        left = [name for name in names if name not in self._found]
        for name in random.sample(left, min(len(left), MAX_SEEN_AGAIN)):
            self._look(zeroconf, name)

    def _look(self, zeroconf: Zeroconf, name: str) -> None:
        """Reads an announcement whose records are present, or queries them; limited to MAX_RESOLVING at a time."""
        try:
            info = AsyncServiceInfo(self._kind.service, name)
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
        if found is None or self.wanted not in (None, found.key_hash):
            self._found.remove(name)  # its former content is withdrawn
            return
        if self._found.put(name, [address.host for address in found.addresses], found):
            self._changed.set()


def read_announcement(
    info: ServiceInfo, networks: Sequence[Network] = PRIVATE, kind: Kind = mdns.GATEWAY
) -> Found | None:
    """Decodes an announcement; None if it is not one of this protocol. Its content is untrusted.

    `networks`: those that an address must be in.
    """
    txt = info.decoded_properties
    key_hash = txt.get("kh") or ""
    tls_hash = txt.get("th") or ""
    if txt.get("v") != mdns.TXT_VERSION or txt.get("path") != kind.path:
        return None
    if not re.fullmatch(r"[0-9a-f]{16}", key_hash) or not re.fullmatch(r"[0-9a-f]{64}", tls_hash):
        return None

    hosts = sorted((host for host in info.parsed_scoped_addresses() if _is_of_use(host, networks)), key=_rank)
    if not hosts or not info.port:
        return None

    name = "".join(c for c in info.name.removesuffix(f".{kind.service}") if c.isprintable())
    addresses = tuple(Address(host, info.port) for host in hosts[:MAX_ADDRESSES])
    return Found(name[:64], addresses, info.port, key_hash, bytes.fromhex(tls_hash))


def _is_of_use(host: str, networks: Sequence[Network]) -> bool:
    """Whether the address is allowed, and can be dialled: an IPv6 link-local one without its zone cannot."""
    address = ipaddress.ip_address(host)
    zoneless = isinstance(address, ipaddress.IPv6Address) and address.is_link_local and address.scope_id is None
    return not zoneless and any(address in network for network in networks)


def _rank(host: str) -> tuple[int, bool]:
    address = ipaddress.ip_address(host)
    return address.version, address.is_link_local
