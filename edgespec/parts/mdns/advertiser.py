"""Announces this gateway, or this daemon to its peers, on the local network by mDNS."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from zeroconf import Error, ServiceInfo
from zeroconf.asyncio import AsyncZeroconf

from edgespec.parts.mdns import interfaces
from edgespec.parts.mdns.interfaces import Interface
from edgespec.parts.mdns.records import announcement, service_type
from edgespec.shared.log_text import cause
from edgespec.shared.nearby import GATEWAY, Announced, Announcer, Kind

log = logging.getLogger("edgespec.parts.mdns.advertiser")

_ALL_ADDRESSES = ("0.0.0.0", "::", "")  # noqa: S104  compared, not bound


class Advertiser(Announcer):
    """Updates the announcement when the interfaces of this machine change, until it is closed.

    No failure here stops the process: if mDNS does not work, a warning is logged, and the address must be typed
    when a machine is paired.
    """

    def __init__(self, machine: Announced, only: Sequence[str] | None = None, kind: Kind = GATEWAY) -> None:
        """`only`: names of the interfaces to use, for tests."""
        self._machine = machine
        self._only = only
        self._kind = kind
        self._zeroconf: AsyncZeroconf | None = None
        self._info: ServiceInfo | None = None
        self._announced: list[Interface] = []
        self._wakes = interfaces.Wakes()
        self._warned = ""
        self._bound_to: set[str] = set()
        """The addresses that `host` means, if it is not all of them."""
        self._task: asyncio.Task[None] | None = None

    @property
    def works(self) -> bool:
        return bool(self._announced)

    def start(self) -> None:
        """Begins to announce, in the background: a new name is probed for first, which takes a second."""
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._zeroconf is not None:
            with contextlib.suppress(OSError, Error):
                await self._zeroconf.async_close()
            self._zeroconf = None

    async def _run(self) -> None:
        if self._machine.host not in _ALL_ADDRESSES:
            with contextlib.suppress(OSError):  # then nothing is announced, and `_run` logs a warning
                resolved = await asyncio.get_running_loop().getaddrinfo(self._machine.host, self._machine.port)
                self._bound_to = {str(entry[4][0]).split("%")[0] for entry in resolved}
        while True:
            now = self._interfaces()
            try:
                if self._wakes.happened() or now != self._announced:
                    self._announced = []
                    if now:
                        await self._announce(now)
                    self._announced = now
                if not now:
                    if self._machine.host in _ALL_ADDRESSES:
                        what = "has an address"
                    else:
                        what = f"has the address {self._machine.host}"
                    self._warn(f"no interface to a network {what}")
            except (OSError, Error) as error:  # the port is in use, multicast is off, the name is taken
                self._warn(cause(error))
            await asyncio.sleep(interfaces.POLL_S)

    async def _announce(self, usable: Sequence[Interface]) -> None:
        info = self._service(usable)
        choice = [interface.choice for interface in usable]
        if self._zeroconf is None:
            self._zeroconf = AsyncZeroconf(interfaces=choice)
        if self._info is None:
            await self._zeroconf.async_update_interfaces(choice)
            await self._zeroconf.async_register_service(info, allow_name_change=True)
        else:
            info.name = self._info.name  # zeroconf may have changed it at registration
            await self._zeroconf.async_update_service(info)  # first, so that no old address is sent on a new interface
            await self._zeroconf.async_update_interfaces(choice)
        self._info = info
        self._warned = ""
        names = ", ".join(interface.name for interface in usable)
        log.info("announced by mDNS on %s as %s", names, info.name.removesuffix(f".{service_type(self._kind)}"))

    def _interfaces(self) -> list[Interface]:
        """The interfaces through which a worker can reach the link port."""
        return [usable for usable in interfaces.interfaces(self._only) if self._addresses(usable)]

    def _addresses(self, interface: Interface) -> list[str]:
        if self._machine.host == "::":
            return [*interface.ipv4, *interface.ipv6]
        if self._machine.host in _ALL_ADDRESSES:
            return list(interface.ipv4)
        return [address for address in (*interface.ipv4, *interface.ipv6) if address in self._bound_to]

    def _service(self, usable: Sequence[Interface]) -> ServiceInfo:
        addresses = [address for interface in usable for address in self._addresses(interface)]
        return announcement(self._kind, self._machine, addresses)

    def _warn(self, why: str) -> None:
        if why != self._warned:
            self._warned = why
            log.warning(
                "mDNS does not work (%s), so workers cannot find this machine by themselves: give them its address, as "
                "in `%s wss://HOST:%d CODE`",
                why,
                self._kind.command,
                self._machine.port,
            )
