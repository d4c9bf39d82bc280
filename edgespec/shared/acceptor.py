"""Accepts connections on a listening port within bounds that hold from `accept` on, before TLS and before HTTP.

asyncio's own accept loop has no bound on connections, and logs a traceback for every `accept` that fails for want of a
file descriptor, thousands a second. This one gives connections places, asks the port's guard who has to leave them
(guards.py), and logs refusals at most once a minute. It serves any asyncio protocol: `websockets`' connections and
aiohttp's handlers alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import ssl as ssl_module
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from edgespec.shared.address import source_of
from edgespec.shared.guards import PLAIN, Guards, Meter, PortBounds, PortGuard
from edgespec.shared.log_text import LimitedLog

BACKLOG = 256
"""Connections that the kernel completes and holds until they are accepted."""
ACCEPTS_AT_ONCE = 16
"""Connections taken in one turn of the event loop: as many TLS handshakes may then begin in the next one."""
RETRY_S = 0.2
"""Pause after an `accept` that failed for want of descriptors or memory: the socket stays readable meanwhile."""
SSL_SHUTDOWN_S = 2.0
"""Time for the peer's half of the TLS shutdown; a peer that is gone holds its descriptor so much longer."""
MAX_DESCRIPTORS = 65536
"""Target of the soft limit of open files, if the hard limit allows it; the systemd unit sets the same."""
RESERVED_DESCRIPTORS = 192
"""File descriptors that connections never take: control socket, state and model files, traces, mDNS, event loop."""
_WANT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: `close` frees the connection in the kernel at once."""

METERED_BYTES = 8192
"""Taken from a connection with a meter in one turn of the event loop: at most 370 TLS records, of a byte each."""


class MeteredSocket(socket.socket):
    """A TCP socket, of either end, that ends its stream once a meter has refused what its peer sent.

    Neither asyncio nor `websockets` shows in which pieces its bytes came.
    """

    _meter: Meter | None = None
    _is_refused = False

    def watch(
        self,
        meter: Meter,
        is_proven: Callable[[], bool],
        on_refused: Callable[[str], None],
    ) -> None:
        """Begins to watch, before the first byte is read; `on_refused` is called once, with what was too much."""
        self._meter = meter
        self._is_proven = is_proven
        self._on_refused = on_refused

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Called by asyncio; returns 0, as at the end of the stream, for a peer that was refused."""
        if self._meter is None:
            return super().recv_into(buffer, nbytes, flags)

        view = memoryview(buffer)[:METERED_BYTES]
        count = super().recv_into(view, min(nbytes, len(view)), flags)
        if not self._is_refused:
            why = self._meter.take(view[:count], self._is_proven(), asyncio.get_running_loop().time())
            if why is not None:
                self._is_refused = True
                self._on_refused(why)
        if self._is_refused:
            return 0
        return count


class AdmittedConnection(MeteredSocket):
    """One connection to an acceptor's port, from `accept` until its descriptor is closed."""

    transport: asyncio.BaseTransport | None = None
    """Set once the connection is set up, TLS included."""

    def __init__(
        self,
        listening: socket.socket,
        descriptor: int,
        address: str,
        acceptor: Acceptor,
    ) -> None:
        """`address`: the peer's."""
        super().__init__(listening.family, listening.type, listening.proto, fileno=descriptor)
        self._acceptor = acceptor
        self.address = address
        self.source = source_of(address)

    @property
    def is_proven(self) -> bool:
        return self in self._acceptor.proven

    def prove(self) -> bool:
        """The peer has proven a key: it is no longer dropped for newer ones. False if the port is full."""
        return self._acceptor.prove(self)

    def drop(self) -> None:
        """Ends the connection without sending anything."""
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()
        else:
            with contextlib.suppress(OSError):  # asyncio's TLS handshake reads the end and closes
                self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        super().close()
        self._acceptor.left(self)


Factory = Callable[[AdmittedConnection], asyncio.BaseProtocol]


class Acceptor:
    """One listening port. For use on one event loop; has the methods of `asyncio.Server` that `websockets` uses."""

    def __init__(
        self,
        name: str,
        bounds: PortBounds,
        log: logging.Logger,
        on_refused: Callable[[str], None] = lambda reason: None,
        guards: Guards = PLAIN,
    ) -> None:
        """`name` of the port, for logs; `on_refused` is called with a closed label for each connection turned away;
        `guards`: the program's.
        """
        self.bounds = bounds
        self.unproven: dict[AdmittedConnection, None] = {}
        """Connections that have proven nothing, oldest first."""
        self.proven: set[AdmittedConnection] = set()
        self._guards = guards
        self._guard: PortGuard
        self._name = name
        self._on_refused = on_refused
        self._lines = LimitedLog(log)
        self._loop = asyncio.get_running_loop()
        self._listening: list[socket.socket] = []
        self._setting_up: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._factory: Factory
        self._ssl: dict[str, Any] = {}

    async def start(
        self,
        host: str,
        port: int,
        factory: Factory,
        ssl: ssl_module.SSLContext | None = None,
        handshake_s: float = 10.0,
    ) -> int:
        """Binds and accepts; returns the port, which is chosen here for 0. Raises OSError if it cannot be bound.

        `factory` makes the protocol of a connection; `handshake_s` bounds the TLS handshake.
        """
        if ssl is not None:
            self._ssl = {
                "ssl": ssl,
                "ssl_handshake_timeout": handshake_s,
                "ssl_shutdown_timeout": SSL_SHUTDOWN_S,
            }
        self._factory = factory
        self._guard = self._guards.port(self.bounds, encrypted=ssl is not None)
        self._listening = await _bind(host, port)
        self._listen()
        return int(self._listening[0].getsockname()[1])

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening sockets; none once closed."""
        return tuple(self._listening)

    def is_serving(self) -> bool:
        return bool(self._listening)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def drop_unproven(self) -> None:
        """Ends all connections that have proven no key."""
        for connection in list(self.unproven):
            connection.drop()

    def close(self) -> None:
        """Stops listening and ends TLS handshakes; the protocol closes the other connections."""
        if self._retry is not None:
            self._retry.cancel()
        for sock in self._listening:
            self._loop.remove_reader(sock)
            sock.close()
        self._listening = []
        for connection in list(self.unproven):
            if connection.transport is None:
                connection.drop()

    async def wait_closed(self) -> None:
        """Waits for the handshakes that `close` has ended."""
        if self._setting_up:
            await asyncio.wait(self._setting_up)

    # --- accepting -------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        self._retry = None
        for sock in self._listening:
            self._loop.add_reader(sock, self._readable, sock)

    def _readable(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                descriptor, peer = listening._accept()  # type: ignore[attr-defined]  # as socket.accept, for a subclass
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._failed(error)
                return
            self._arrived(AdmittedConnection(listening, descriptor, str(peer[0]), self))

    def _arrived(self, connection: AdmittedConnection) -> None:
        refusal = self._guard.refusal(connection.source, self._loop.time())
        if refusal is not None:
            _reset(connection)
            self._refused(refusal.reason, refusal.why)
            return

        leaving = self._guard.leaving(self.unproven, connection.source)
        if leaving is not None:
            self._evict(leaving, "a newer one")
        self.unproven[connection] = None

        meter = self._guards.meter() if self._ssl else None
        if meter is not None:
            connection.watch(meter, lambda: connection.is_proven, partial(self._flooded, connection))
        task = self._loop.create_task(self._set_up(connection))
        self._setting_up.add(task)
        task.add_done_callback(self._setting_up.discard)

    def _flooded(self, connection: AdmittedConnection, why: str) -> None:
        self._loop.call_soon(connection.drop)
        self._refused("flood", f"{why} from {connection.source}")

    async def _set_up(self, connection: AdmittedConnection) -> None:
        make = partial(self._factory, connection)
        try:
            connection.transport, _ = await self._loop.connect_accepted_socket(make, connection, **self._ssl)
        except (OSError, TimeoutError, EOFError):
            connection.close()  # a failed handshake: scanners cause many, so there is no log line for each
        except BaseException:  # cancelled too: the descriptor is freed in any case, and the error goes on
            connection.close()
            raise

    def prove(self, connection: AdmittedConnection) -> bool:
        """Gives a connection a place for proven ones; False if none is left, or the connection is gone."""
        if connection in self.proven:
            return True
        if connection not in self.unproven or len(self.proven) >= self.bounds.total - self.bounds.unproven:
            return False

        del self.unproven[connection]
        self.proven.add(connection)
        return True

    def left(self, connection: AdmittedConnection) -> None:
        """A connection's descriptor is closed."""
        self.unproven.pop(connection, None)
        self.proven.discard(connection)

    def _evict(self, connection: AdmittedConnection, what_for: str) -> None:
        del self.unproven[connection]
        connection.drop()
        self._refused(
            "busy",
            f"a connection from {connection.source} that had proven no key was dropped for {what_for}",
        )

    def _failed(self, error: OSError) -> None:
        """After a failed `accept`: pauses, since the socket stays readable, and frees descriptors for the next ones."""
        for sock in self._listening:
            self._loop.remove_reader(sock)
        self._retry = self._loop.call_later(RETRY_S, self._listen)
        for _ in range(ACCEPTS_AT_ONCE if error.errno in _WANT else 0):
            leaving = self._guard.leaving(self.unproven, None)
            if leaving is not None:
                self._evict(leaving, "want of file descriptors")
        if error.errno:
            text = os.strerror(error.errno)
        else:
            text = type(error).__name__
        self._lines.warning(
            ("accept", error.errno),
            f"{self._name}: no connection can be accepted ({text})",
        )

    def _refused(self, reason: str, text: str) -> None:
        self._lines.warning(reason, f"{self._name}: connection refused: {text} ({reason})")
        self._on_refused(reason)


def raise_descriptor_limit() -> int:
    """Raises this process's soft limit of open files up to the hard one; returns the limit now in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        wanted = MAX_DESCRIPTORS
    else:
        wanted = min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY:
        return MAX_DESCRIPTORS

    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a container may forbid it: the old limit stays in force
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return soft


def share_descriptors(wanted: Mapping[str, int], limit: int) -> dict[str, int]:
    """Connections that each port may hold under a limit of file descriptors: as wanted, or all scaled down alike."""
    room = max(limit - RESERVED_DESCRIPTORS, limit // 4)
    scale = min(1.0, room / max(1, sum(wanted.values())))
    return {name: max(2, int(number * scale)) for name, number in wanted.items()}


def _reset(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()


async def _bind(host: str, port: int) -> list[socket.socket]:
    """One listening socket for each address of `host`, as in `loop.create_server`. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            bound.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
    except OSError:
        for sock in bound:
            sock.close()
        raise

    return bound
