"""A port over TLS whose connections, their rate and content are bounded from `accept` on: WebSockets, or streams."""

from __future__ import annotations

import asyncio
import logging
import ssl as ssl_module
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from websockets.asyncio.server import Server, ServerConnection
from websockets.exceptions import WebSocketException
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from edgespec.core.protocol.handshake import CloseCode
from edgespec.core.protocol.inflow import InflowLimits
from edgespec.shared.acceptor import Acceptor, AdmittedConnection
from edgespec.shared.guards import PLAIN, Guards, PortBounds
from edgespec.shared.wire import FlowLimited

Streams = Callable[[AdmittedConnection, asyncio.StreamReader, asyncio.StreamWriter], None]
"""Begins to serve a connection whose TLS handshake has agreed on a protocol by ALPN, in place of WebSocket."""


class LimitedConnection(FlowLimited, ServerConnection):
    """One connection to the port; unproven until `proven` is called."""

    def __init__(
        self,
        protocol: ServerProtocol,
        server: Server,
        admitted: AdmittedConnection,
        limits: InflowLimits,
        streams: Streams | None,
        **options: Any,
    ) -> None:
        self.inflow_limits = limits
        super().__init__(protocol, server, **options)
        self._admitted = admitted
        self._streams = streams

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio after the TLS handshake."""
        protocol = transport.get_extra_info("ssl_object").selected_alpn_protocol()
        if protocol is None or self._streams is None:
            super().connection_made(transport)
            return

        assert isinstance(transport, asyncio.Transport)
        stream = asyncio.StreamReaderProtocol(asyncio.StreamReader(), partial(self._streams, self._admitted))
        transport.set_protocol(stream)
        stream.connection_made(transport)

    @property
    def peer(self) -> str:
        return f"peer {self._admitted.address}"

    def proven(self) -> bool:
        """The peer has proven its key: it leaves the unproven pool, and rates bound it instead of totals. False if
        the port is full.
        """
        self.inflow.proven = self._admitted.prove()
        return self.inflow.proven


class LimitedPort:
    """Serves the handler over WebSockets at `paths`; any other path is answered with 404."""

    def __init__(
        self,
        name: str,
        handle: Callable[[LimitedConnection], Awaitable[None]],
        paths: Sequence[str],
        bounds: PortBounds,
        inflow: InflowLimits,
        options: Mapping[str, Any],
        handshake_s: float,
        log: logging.Logger,
        on_refused: Callable[[str], None] = lambda reason: None,
        streams: Streams | None = None,
        guards: Guards = PLAIN,
    ) -> None:
        """`name` of the port, for `log`; `options` of `websockets`; `handshake_s` bounds TLS and the upgrade, each;
        `on_refused` gets a closed label for each refusal here.
        """
        self._name = name
        self._handle = handle
        self._paths = paths
        self._handshake_s = handshake_s
        self._bounds = bounds
        self._guards = guards
        self._inflow = inflow
        self._log = log
        self._on_refused = on_refused
        self._streams = streams
        self._quiet = log.getChild("websockets")
        self._quiet.setLevel(logging.CRITICAL)  # `websockets` logs tracebacks; the handler logs failures in a line each
        self._protocol = {"max_size": options["max_size"], "logger": self._quiet}
        self._options = {key: options[key] for key in ("ping_interval", "close_timeout", "max_queue") if key in options}
        self._acceptor: Acceptor
        self._server: Server | None = None

    async def start(self, host: str, port: int, ssl: ssl_module.SSLContext) -> int:
        """Begins to serve; returns the port, which matters for port 0. Raises OSError if it cannot be bound."""
        self._acceptor = Acceptor(self._name, self._bounds, self._log, self._on_refused, self._guards)

        async def listen() -> Any:  # `websockets` uses four methods of asyncio.Server, which the acceptor has
            await self._acceptor.start(host, port, self._connection, ssl, self._handshake_s)
            return self._acceptor

        self._server = await Server(listen, self._run, self._quiet)
        return int(self._acceptor.sockets[0].getsockname()[1])

    async def stop(self, code: int = CloseCode.GOING_AWAY, reason: str = "") -> None:
        if self._server is not None:
            self._server.close(code=code, reason=reason)
            self._acceptor.drop_unproven()  # a stalled handshake would delay the end by seconds
            await self._server.wait_closed()

    def _connection(self, admitted: AdmittedConnection) -> LimitedConnection:
        assert self._server is not None
        protocol = ServerProtocol(**self._protocol)
        return LimitedConnection(
            protocol,
            self._server,
            admitted,
            self._inflow,
            self._streams,
            **self._options,
        )

    async def _run(self, ws: ServerConnection) -> None:
        """Runs one connection from the end of its TLS handshake, in the steps of `websockets.serve`."""
        assert isinstance(ws, LimitedConnection) and self._server is not None
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
