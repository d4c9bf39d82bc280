"""A bound HTTP listener: the API's, and the one for metrics."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from cloud_gateway.api.connection import Runner
from edgespec.core.errors import AddressError

REASONS: Mapping[int, str] = {
    errno.EADDRINUSE: "is in use, perhaps by another gateway ('ss -ltnp' names the process): stop that one, or change "
    "`{section}.port`",
    errno.EACCES: "may not be bound by this user (ports below 1024 need CAP_NET_BIND_SERVICE): change `{section}.port`",
    errno.EADDRNOTAVAIL: "is no address of this machine: change `{section}.host`",
}


@dataclass(frozen=True, slots=True)
class Listener:
    """Open from `listen` to `close`; `port` is the actual one where 0 was asked for."""

    runner: web.AppRunner
    host: str
    port: int

    @property
    def url(self) -> str:
        """Where a client on this machine reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    async def close(self) -> None:
        """Stops listening and drops what is still open."""
        await self.runner.cleanup()


async def listen(app: web.Application, host: str, port: int, section: str) -> Listener:
    """Binds and serves `app`; port 0 takes a free one. Raises AddressError naming the address and what to change."""
    runner = Runner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise address_error(error, host, port, section) from error
    return Listener(runner, host, int(runner.addresses[0][1]))


def check_free(host: str, port: int, section: str) -> None:
    """Raises AddressError where something that listens only later could not."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise address_error(error, host, port, section) from error


def address_error(error: OSError, host: str, port: int, section: str) -> AddressError:
    """The one sentence for an address that could not be bound."""
    what = (error.strerror or str(error)).lower()
    unknown = f"cannot be bound ({what}): change `{{section}}.host` or `{{section}}.port`"
    why = REASONS.get(error.errno or 0, unknown).format(section=section)
    return AddressError(f"{host} port {port} {why}.")
