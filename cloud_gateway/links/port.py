"""The link port: WebSockets over TLS whose number, rate and content are bounded from `accept` on."""

from __future__ import annotations

import asyncio
import logging
import ssl as ssl_module
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.server import Server, ServerConnection
from websockets.exceptions import WebSocketException
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from cloud_gateway.acceptor import Acceptor, Seat
from cloud_gateway.core.limits.admission import AdmissionLimits
from cloud_gateway.core.limits.settings import LinkBounds
from edgespec.core.protocol.inflow import InflowLimits
from edgespec.shared.guarded import Guarded
from edgespec.shared.wire import WEBSOCKET_OPTIONS

log = logging.getLogger("cloud_gateway.links.server")
_quiet = logging.getLogger("cloud_gateway.links.server.websockets")
_quiet.setLevel(logging.CRITICAL)  # `websockets` logs tracebacks; links.py logs the same failures in one line each


TOTAL_RATE = 5.0
"""New connections of all sources, in multiples of one source's rate: by default 100 TLS handshakes a second, which
take a third of a core; the rest is left to linked workers and clients of the API."""
WORKER_FRAMES_PER_S = 200.0
"""Of one worker, which sends at most `TREES_PER_S` trees. A frame with 64 nodes costs up to half a millisecond from TLS
to the merge, so that a flood of them takes a tenth of one core."""
BURST_S = 5.0
"""New connections at once, in seconds of their rate: after a restart all workers behind one address reconnect."""


def link_admission(bounds: LinkBounds, total: int) -> AdmissionLimits:
    """Bounds of the link port, whose share of the descriptors are `total`.

    A source may hold any number of proven connections: the machines of a campus often share one address.
    """
    unproven, rate = max(1, min(bounds.unproven_connections, total // 2)), bounds.connections_per_s
    mine, burst = min(bounds.unproven_per_source, unproven), max(1, round(BURST_S * rate))
    return AdmissionLimits(total, unproven, mine, total, rate, burst, TOTAL_RATE * rate)


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Bounds on what peers can make the gateway do."""

    admission: AdmissionLimits
    inflow: InflowLimits = field(default_factory=lambda: InflowLimits(frames_per_s=WORKER_FRAMES_PER_S))


class LinkConnection(Guarded, ServerConnection):
    """One connection to the link port; unproven until `proven` is called."""

    def __init__(
        self, protocol: ServerProtocol, server: Server, acceptor: Acceptor, limits: InflowLimits, **options: Any
    ) -> None:
        super().__init__(protocol, server, **options)
        self.inflow_limits = limits
        self._acceptor = acceptor
        self._seat: Seat | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio after the TLS handshake."""
        self._seat = self._acceptor.seat(transport)
        super().connection_made(transport)

    @property
    def peer(self) -> str:
        """The peer's address, for logs."""
        return f"peer {self._seat.address}" if self._seat is not None else "peer at an unknown address"

    def proven(self) -> bool:
        """Takes it out of the unproven pool; False where the port is full."""
        return self._seat is not None and self._seat.proven()


class LinkServer:
    """Serves the handler over WebSockets at `paths`; any other path is answered with 404."""

    def __init__(
        self,
        handle: Callable[[LinkConnection], Awaitable[None]],
        paths: Sequence[str],
        limits: LinkLimits,
        handshake_s: float,
        on_refused: Callable[[str], None],
    ) -> None:
        """`handshake_s` bounds TLS and the upgrade, each; `on_refused` gets a closed label for each refusal here."""
        self._handle, self._paths, self._limits, self._handshake_s = handle, paths, limits, handshake_s
        self._on_refused = on_refused
        self._acceptor: Acceptor
        self._server: Server | None = None

    async def start(self, host: str, port: int, ssl: ssl_module.SSLContext) -> int:
        """Begins to serve; returns the port, which matters for port 0. Raises OSError where it cannot be bound."""
        self._acceptor = Acceptor("link port", self._limits.admission, log, self._on_refused)

        async def listen() -> Any:  # `websockets` uses four methods of asyncio.Server, which the acceptor has
            await self._acceptor.start(host, port, self._connection, ssl, self._handshake_s)
            return self._acceptor

        self._server = await Server(listen, self._run, _quiet)
        return int(self._acceptor.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stops listening and closes all connections."""
        if self._server is not None:
            self._server.close()
            self._acceptor.drop_unproven()  # a stalled handshake would delay the end by seconds
            await self._server.wait_closed()

    def _connection(self) -> LinkConnection:
        assert self._server is not None
        options = {name: WEBSOCKET_OPTIONS[name] for name in ("ping_interval", "close_timeout")}
        protocol = ServerProtocol(max_size=WEBSOCKET_OPTIONS["max_size"], logger=_quiet)
        return LinkConnection(protocol, self._server, self._acceptor, self._limits.inflow, **options)

    async def _run(self, ws: ServerConnection) -> None:
        """Runs one connection from the end of its TLS handshake, in the steps of `websockets.serve`."""
        assert isinstance(ws, LinkConnection) and self._server is not None
        try:
            async with asyncio.timeout(self._handshake_s):
                await ws.handshake(self._only_known_paths, server_header=None)
            if ws.protocol.state is not OPEN:
                return
            self._server.all_connections.add(ws)
            await self._handle(ws)
            await ws.close()
        except (TimeoutError, OSError, EOFError, WebSocketException):
            pass  # a peer that breaks HTTP, stalls or disappears: scanners do, so there is no log line for each
        finally:
            ws.transport.abort()
            self._server.all_connections.discard(ws)
            task = asyncio.current_task()
            assert task is not None
            self._server.handler_tasks.discard(task)

    def _only_known_paths(self, ws: ServerConnection, request: Request) -> Response | None:
        if request.path in self._paths:
            return None
        return ws.respond(404, "Not found.\n")
