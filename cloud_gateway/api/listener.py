"""A bound HTTP listener: the API's, and the one for metrics."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import hdrs, web

from cloud_gateway.api.connection import SERVER, Connection, IdleConnections, Times
from edgespec.core.admission import AdmissionLimits
from edgespec.core.errors import AddressError
from edgespec.shared.acceptor import Acceptor

REASONS: Mapping[int, str] = {
    errno.EADDRINUSE: "is in use, perhaps by another gateway ('ss -ltnp' names the process): stop that one, or change "
    "`{section}.port`",
    errno.EACCES: "may not be bound by this user (ports below 1024 need CAP_NET_BIND_SERVICE): change `{section}.port`",
    errno.EADDRNOTAVAIL: "is no address of this machine: change `{section}.host`",
}


log = logging.getLogger("cloud_gateway.api")
CONNECTIONS = 1024
"""At once, fewer where the limit of open files does not suffice: a gateway serves some tens of streams."""
UNPROVEN = 256
"""Those on which no valid key was received yet. At the limit a new one replaces the oldest, so that clients that open
connections and send nothing cannot lock out others. Of one address as many: behind a proxy all clients have one."""
CONNECTIONS_PER_S = 1000.0
"""New ones of one address. The rate only bounds the time that accepting takes, a fifth of a millisecond each."""
API_BURST_S = 4.0
"""New connections of one source at once, in seconds of their rate."""


def api_admission(total: int) -> AdmissionLimits:
    """Bounds of the API port, whose share of the descriptors are `total`."""
    unproven, burst = max(1, min(UNPROVEN, total // 2)), int(API_BURST_S * CONNECTIONS_PER_S) + 1
    return AdmissionLimits(total, unproven, unproven, CONNECTIONS_PER_S, burst)


METRICS_LIMITS = AdmissionLimits(total=64, unproven=32, unproven_per_source=32, rate_per_s=100, burst=200)
"""The port has no keys, and one Prometheus needs one connection."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Open from `listen` to `close`; `port` is the actual one where 0 was asked for."""

    runner: web.AppRunner
    acceptor: Acceptor
    host: str
    port: int

    @property
    def url(self) -> str:
        """Its URL for clients on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    async def close(self) -> None:
        """Stops listening and drops open connections."""
        self.acceptor.close()
        await self.acceptor.wait_closed()
        await self.runner.cleanup()


async def listen(
    app: web.Application, host: str, port: int, section: str, limits: AdmissionLimits, times: Times
) -> Listener:
    """Binds and serves `app`; port 0 takes a free one. Raises AddressError naming the address and what to change."""
    app.on_response_prepare.append(_name_server)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    server = runner.server
    assert server is not None
    idle = IdleConnections()
    acceptor = Acceptor(f"`{section}` port", limits, log)
    try:
        bound = await acceptor.start(host, port, lambda admitted: Connection(server, admitted, times, idle))
    except OSError as error:
        await runner.cleanup()
        raise address_error(error, host, port, section) from error
    return Listener(runner, acceptor, host, bound)


async def _name_server(request: web.Request, response: web.StreamResponse) -> None:
    response.headers[hdrs.SERVER] = SERVER


def check_free(host: str, port: int, section: str) -> None:
    """Raises AddressError where an address that is bound later is not free now."""
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
