"""A bound HTTP listener, the API's or that of a part, with bounds on what a client without a key can cost.

The head of a request must arrive in time. A body that was not read is never parsed or decompressed: after the response
a little of it is discarded, so that the client reads the response before its own writing fails, and the connection
ends. What is not HTTP is answered with an error of the usual shape, and neither response nor log repeats a byte of it.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import HttpVersion10, HttpVersion11, hdrs, web
from aiohttp.http_exceptions import BadStatusLine
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from cloud_gateway.api.errors import (
    HEADER,
    error_response,
    internal,
    lines,
    new_id,
    requests_log,
)
from edgespec.core.errors import AddressError, ClientError
from edgespec.shared.acceptor import Acceptor, AdmittedConnection
from edgespec.shared.guards import PLAIN, Guards, PortBounds

MAX_DROPPED_BYTES = 64 * 1024
"""Of an unread body, discarded after every refusal; an ordinary chat request is shorter."""
MAX_DROPPED_BODY_BYTES = 8 * 2**20
"""Of one unread body while the port's allowance lasts. A proxy sends the whole body before it reads the response: if
the connection is reset before, it answers 502 in place of 401 or 413. Twice the longest body that is accepted."""
DROPPED_BYTES_PER_S = 32 * 2**20
"""Allowance of the whole port beyond MAX_DROPPED_BYTES for each refusal, kept for a second, so that its cost does not
grow with the number of clients that send."""
DROP_S = 1.0
"""Without a byte of that body: a round trip and a little more."""
MAX_DROP_S = 10.0
"""For all of that body, as for a head."""
MAX_HEAD_LINE = 8190
"""Bytes of the request line, and of one header; the limit of nginx and Apache."""
VERSIONS = HttpVersion10, HttpVersion11
"""Of HTTP that are spoken here; aiohttp's parser also passes 0.9 and 2.0, and answers in the request's version."""
SERVER = "edgespec"
"""The header `Server` of every response; aiohttp's names the versions of Python and aiohttp."""
MAX_IDLE_PER_KEY = 64
"""Pools of HTTP clients keep 10 to 20; without a bound one key could hold every connection of the port."""


@dataclass(frozen=True, slots=True)
class ClientTimes:
    """Maximum times for which the gateway waits for a client, in seconds."""

    head_s: float = 10.0
    """From the first byte of a request, or from the connection's beginning, to the end of the headers."""
    idle_s: float = 75.0
    """Between two requests; longer than the 60 s of common proxies, so that they close first."""
    unread_s: float = 20.0
    """For a client that does not read its response to take any of it, once the buffers are full."""


class IdleConnections:
    """The idle connections of one listener. Beyond the bound, the oldest of a key is closed."""

    def __init__(self) -> None:
        self._by_key: dict[str, OrderedDict[Connection, None]] = {}
        """Only keys with idle connections."""

    def add(self, key: str, connection: Connection) -> None:
        """A request has ended. Closes the oldest connection of this key where there are too many."""
        mine = self._by_key.setdefault(key, OrderedDict())
        mine[connection] = None
        if len(mine) > MAX_IDLE_PER_KEY:
            oldest, _ = mine.popitem(last=False)
            oldest.close_idle()

    def discard(self, key: str, connection: Connection) -> None:
        """A request has begun, or the connection has ended."""
        mine = self._by_key.get(key, OrderedDict())
        mine.pop(connection, None)
        if not mine:
            self._by_key.pop(key, None)


class DropAllowance:
    """Bytes of unread bodies that one port still discards: a bucket that fills up with time."""

    def __init__(self, now: float) -> None:
        self._bytes = float(DROPPED_BYTES_PER_S)
        self._filled_at = now

    def take(self, size: int, now: float) -> bool:
        """Whether so many more bytes, which have arrived at `now` (monotonic seconds), are within the allowance."""
        refilled = self._bytes + (now - self._filled_at) * DROPPED_BYTES_PER_S
        self._filled_at = now
        self._bytes = min(float(DROPPED_BYTES_PER_S), refilled) - size
        if self._bytes >= 0:
            return True

        self._bytes = 0.0
        return False


class Connection(RequestHandler):
    """The protocol of one connection: aiohttp's handler with these bounds."""

    __slots__ = (
        "_admitted",
        "_allowance",
        "_drop_timer",
        "_dropped",
        "_dropping",
        "_head_late",
        "_idle",
        "_key",
        "_times",
        "_unread",
        "_unread_bytes",
        "_wire",
    )

    def __init__(
        self, server: web.Server, admitted: AdmittedConnection, times: ClientTimes, idle: IdleConnections,
        allowance: DropAllowance,
    ) -> None:  # fmt: skip
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=times.idle_s,
            access_log=None,  # type: ignore[arg-type]  # aiohttp's own way to have none
            lingering_time=0,
            auto_decompress=False,
            max_line_size=MAX_HEAD_LINE,
            max_field_size=MAX_HEAD_LINE,
        )
        self._admitted = admitted
        self._times = times
        self._idle = idle
        self._key: str | None = None
        """The API key of the last request, while the connection waits for the next one."""
        self._head_late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        self._wire: asyncio.Transport | None = None
        """Until it is lost; aiohttp's `transport` is None from a forced close on."""
        self._allowance = allowance
        self._dropping = 0
        """Bytes of an unread body that were discarded."""
        self._dropped: asyncio.Event | None = None
        """Set when the body is discarded no longer; None: it is not discarded."""
        self._drop_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        super().connection_made(transport)
        self._head_late = self._loop.call_later(self._times.head_s, self._give_up)

    async def start(self) -> None:
        """aiohttp's loop over requests. It closes the transport at its end, which then still sends what is unsent."""
        try:
            await super().start()
        finally:
            if self._wire is not None and self._wire.get_write_buffer_size():
                self._wait_for_reader()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._wire = None
        self._stop_waiting()
        self._leave_idle()
        if self._unread is not None:
            self._unread.cancel()
        if self._dropped is not None:
            self._dropped.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._dropped is not None:
            self._drop(len(data))
            return

        before = self._request_count
        super().data_received(data)
        if self._request_count > before:
            self._refuse_other_versions()
            self._stop_waiting()
            self._leave_idle()
        elif data and self._head_late is None and self._between_requests():
            self._head_late = self._loop.call_later(self._times.head_s, self._give_up)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def proven(self) -> bool:
        """A valid key came over this connection: it is not dropped for newer ones. False where the port is full."""
        return self._admitted.prove()

    def wait_for_next(self, key: str) -> None:
        """A request of this key has been answered, and the connection stays open."""
        self._key = key
        self._idle.add(key, self)

    def close_idle(self) -> None:
        """Closes the connection for a newer one of the same key."""
        self._key = None
        if self._between_requests():
            self.force_close()
        else:
            self.close()  # its last response is still going out

    async def drop_body(self) -> None:
        """Ends the connection after a response to a request whose body was not read."""
        transport = self.transport
        if transport is None:
            return

        self.close()
        self._dropped = asyncio.Event()
        self._drop_timer = self._loop.call_later(DROP_S, self._dropped.set)
        transport.write_eof()
        transport.resume_reading()
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_DROP_S):
                await self._dropped.wait()

        self._drop_timer.cancel()
        self.force_close()

    def _drop(self, size: int) -> None:
        """So many more bytes of the unread body have arrived. Beyond the allowance the connection ends."""
        assert self._dropped is not None
        self._dropping += size
        beyond = self._dropping > MAX_DROPPED_BYTES
        if self._dropping > MAX_DROPPED_BODY_BYTES or (beyond and not self._allowance.take(size, self._loop.time())):
            self._dropped.set()
        if self._drop_timer is not None:
            self._drop_timer.cancel()
            self._drop_timer = self._loop.call_later(DROP_S, self._dropped.set)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The response to invalid HTTP, or to a request that failed outside the application; the connection ends."""
        if request.writer.output_size > 0:
            raise ConnectionError  # a response has begun: aiohttp closes the connection

        if status < 500:
            lines.warning(status, f"refused what is not HTTP from {request.remote} with {status}")
            error = ClientError(
                "The request is not valid HTTP/1.1.",
                status=status,
                code="malformed_http",
            )
        else:
            error = internal(exc or "a request outlived its time")

        response = error_response(error)
        response.headers[HEADER], response.headers[hdrs.SERVER] = new_id(), SERVER
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Logs the type only: texts of HTTP errors quote the request."""
        error = kw.get("exc_info")
        lines.warning(
            ("lost", type(error).__name__),
            f"a connection ended by {type(error).__name__}",
        )

    def _refuse_other_versions(self) -> None:
        for place, (message, _) in enumerate(self._messages):
            if not isinstance(message, _ErrInfo) and message.version not in VERSIONS:
                self._messages[place] = (
                    _ErrInfo(400, BadStatusLine(), "version"),
                    EMPTY_PAYLOAD,
                )

    def _wait_for_reader(self) -> None:
        """Disconnects the client if it has read nothing by the end of `unread_s`, else waits again."""
        if self._unread is not None:
            self._unread.cancel()
        if self._wire is not None:
            self._unread_bytes = self._wire.get_write_buffer_size()
            self._unread = self._loop.call_later(self._times.unread_s, self._check_reader)

    def _check_reader(self) -> None:
        if self._wire is not None and self._wire.get_write_buffer_size() >= self._unread_bytes:
            self._wire.abort()
        else:
            self._wait_for_reader()

    def _between_requests(self) -> bool:
        return self._waiter is not None and not self._messages

    def _leave_idle(self) -> None:
        if self._key is not None:
            self._idle.discard(self._key, self)
            self._key = None

    def _stop_waiting(self) -> None:
        if self._head_late is not None:
            self._head_late.cancel()
            self._head_late = None

    def _give_up(self) -> None:
        self._head_late = None
        if self.transport is not None:
            self.transport.abort()


REASONS: Mapping[int, str] = {
    errno.EADDRINUSE: "is in use, perhaps by another gateway ('ss -ltnp' names the process): stop that one, or change "
    "`{section}.port`",
    errno.EACCES: "may not be bound by this user (ports below 1024 need CAP_NET_BIND_SERVICE): change `{section}.port`",
    errno.EADDRNOTAVAIL: "is no address of this machine: change `{section}.host`",
}

CONNECTIONS = 1024
"""At once, fewer where the limit of open files does not suffice: a gateway serves some tens of streams."""
UNPROVEN = 256
"""Those on which no valid key was received yet. At the limit a new one replaces the oldest, so that clients that open
connections and send nothing cannot lock out others."""


def api_bounds(total: int) -> PortBounds:
    """Those of the API port, whose share of the descriptors are `total`."""
    return PortBounds.within(total, UNPROVEN)


LOOPBACK_HOSTS = frozenset({"127.0.0.1", "[::1]", "localhost"})


def is_local(host: str) -> bool:
    """Whether a header `Host` names this machine itself; a page that was led here by DNS rebinding sends its own."""
    return re.sub(r":\d*\Z", "", host).lower() in LOOPBACK_HOSTS


@dataclass(frozen=True, slots=True)
class OwnPort:
    """A port that a part serves besides those of the API and the links."""

    name: str
    """The table of settings that has its `port`; also its name in the status and the ready file."""
    app: web.Application
    host: str
    number: int
    """0 takes a free one."""
    bounds: PortBounds
    path: str = ""
    """The path that is shown to the operator."""


@dataclass(frozen=True, slots=True)
class ApiListener:
    """Open from `listen` to `close`; `port` is the actual one where 0 was asked for."""

    runner: web.AppRunner
    acceptor: Acceptor
    host: str
    port: int

    @property
    def url(self) -> str:
        """Its URL for clients on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        if ":" in host:
            return f"http://[{host}]:{self.port}"
        return f"http://{host}:{self.port}"

    async def close(self) -> None:
        """Stops listening and drops open connections."""
        self.acceptor.close()
        await self.acceptor.wait_closed()
        await self.runner.cleanup()


async def listen(
    app: web.Application,
    host: str,
    port: int,
    section: str,
    bounds: PortBounds,
    times: ClientTimes,
    guards: Guards = PLAIN,
) -> ApiListener:
    """Binds and serves `app`; port 0 takes a free one. Raises AddressError naming the address and what to change."""
    app.on_response_prepare.append(_name_server)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    server = runner.server
    assert server is not None
    idle = IdleConnections()
    allowance = DropAllowance(asyncio.get_running_loop().time())
    acceptor = Acceptor(f"`{section}` port", bounds, requests_log, guards=guards)
    try:
        bound = await acceptor.start(
            host,
            port,
            lambda admitted: Connection(server, admitted, times, idle, allowance),
        )
    except OSError as error:
        await runner.cleanup()
        raise address_error(error, host, port, section) from error

    return ApiListener(runner, acceptor, host, bound)


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
