"""A bound HTTP listener: the API's, and the one for metrics."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from edgespec.core.errors import AddressError

REASONS: Mapping[int, str] = {
    errno.EADDRINUSE: "it is in use, perhaps by another gateway ('ss -ltnp' names the process); stop that one",
    errno.EACCES: "this user may not bind it (ports below 1024 need the capability CAP_NET_BIND_SERVICE)",
    errno.EADDRNOTAVAIL: "this machine does not have that address",
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


async def listen(app: web.Application, host: str, port: int, config_key: str) -> Listener:
    """Binds and serves `app`; port 0 takes a free one. Raises AddressError naming the address and `config_key`."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise address_error(error, host, port, config_key) from error
    return Listener(runner, host, int(runner.addresses[0][1]))


def address_error(error: OSError, host: str, port: int, config_key: str) -> AddressError:
    """The one sentence for an address that could not be bound."""
    why = REASONS.get(error.errno or 0, (error.strerror or str(error)).lower())
    return AddressError(f"{host} port {port} cannot be listened on: {why}, or change {config_key} in the configuration")
