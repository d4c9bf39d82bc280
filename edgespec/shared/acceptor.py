"""Accepts connections on a listening port within bounds that hold from `accept` on, before TLS and before HTTP.

asyncio's own accept loop has no bound on connections, and logs a traceback for every `accept` that fails for want of a
file descriptor, thousands a second. This one passes each connection to `Admission`, drops those that it refuses or
evicts, and logs refusals at most once a minute. It serves any asyncio protocol: `websockets`' connections and
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
from collections.abc import Callable
from functools import partial
from typing import Any

from edgespec.core.admission import Admission, AdmissionLimits, Refused
from edgespec.core.protocol.inflow import Bucket
from edgespec.shared.address import Address, source_of
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
_WANT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: `close` frees the connection in the kernel at once."""

ENCRYPTED_AT_ONCE = 8192
"""Bytes taken from one TLS connection in one turn of the event loop: at most 370 records, of a byte each."""


MAX_UNPROVEN_RECORDS = 128
"""Before the proof: the handshake takes about six, and each WebSocket frame of the budget may take one."""
RECORDS_PER_S = 2000.0
RECORDS_BURST = 5000
"""After it: twice the frames that are read in a second, and as many at once as wait in buffers after a pause."""
_HEADER_BYTES = 5


class Records:
    """Counts TLS records on the encrypted side, by their headers (RFC 8446 section 5.1).

    A record may carry one byte or none, and costs decrypting and reading like a full one: 60,000 of them, which budgets
    of decrypted bytes allow, held the event loop for more than a second.
    """

    def __init__(self) -> None:
        self.count = 0
        self._header = bytearray()
        self._body = 0
        self._rate = Bucket(RECORDS_PER_S, RECORDS_BURST)

    def take(self, data: memoryview, proven: bool, now: float) -> bool:
        """Counts what has come; False if that is more than allowed."""
        before = self.count
        self._walk(data)
        self._rate.take(self.count - before, now)
        if proven:
            return self._rate.free_at <= now
        return self.count <= MAX_UNPROVEN_RECORDS

    def _walk(self, data: memoryview) -> None:
        at = 0
        while at < len(data):
            if self._body:
                step = min(self._body, len(data) - at)
                self._body -= step
            else:
                step = min(_HEADER_BYTES - len(self._header), len(data) - at)
                self._header += data[at : at + step]
                if len(self._header) == _HEADER_BYTES:
                    self.count += 1
                    self._body = int.from_bytes(self._header[3:], "big")
                    self._header.clear()
            at += step


class CountedSocket(socket.socket):
    """A TCP socket, of either end, that ends its stream once its peer has sent more TLS records than allowed.

    Neither asyncio nor `websockets` shows how many records its bytes came in.
    """

    _is_flooding = False
    _records: Records | None = None

    def count(self, is_proven: Callable[[], bool], on_flood: Callable[[int], None]) -> None:
        """Begins to count, before the first byte is read; `on_flood` is called once, with the number of records."""
        self._records = Records()
        self._is_proven = is_proven
        self._on_flood = on_flood

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Called by asyncio; returns 0, as at the end of the stream, for a peer that floods."""
        if self._records is None:
            return super().recv_into(buffer, nbytes, flags)

        view = memoryview(buffer)[:ENCRYPTED_AT_ONCE]
        count = super().recv_into(view, min(nbytes, len(view)), flags)
        if not self._is_flooding:
            now = asyncio.get_running_loop().time()
            self._is_flooding = not self._records.take(view[:count], self._is_proven(), now)
            if self._is_flooding:
                self._on_flood(self._records.count)
        if self._is_flooding:
            return 0
        return count


class AdmittedConnection(CountedSocket):
    """One connection that an acceptor has admitted, from `accept` until its descriptor is closed."""

    transport: asyncio.BaseTransport | None = None
    """Set once the connection is set up, TLS included."""
    is_proven = False
    _acceptor: Acceptor | None = None

    def admit(self, acceptor: Acceptor, ticket: int, address: str, source: str) -> None:
        self._acceptor = acceptor
        self.ticket = ticket
        self.address = address
        self.source = source
        """The peer's address, for logs, and the source that limits count it under (`source_of`)."""

    def proven(self) -> bool:
        """The peer has proven a key: it is no longer dropped for newer connections. False if the port is full."""
        self.is_proven = self._acceptor is not None and self._acceptor.admission.prove(self.ticket)
        return self.is_proven

    def drop(self) -> None:
        """Ends the connection without sending anything."""
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()
        else:
            with contextlib.suppress(OSError):  # asyncio's TLS handshake reads the end and closes
                self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        super().close()
        acceptor = self._acceptor
        self._acceptor = None
        if acceptor is not None:
            acceptor.left(self)


Factory = Callable[[AdmittedConnection], asyncio.BaseProtocol]


class Acceptor:
    """One listening port. For use on one event loop; has the methods of `asyncio.Server` that `websockets` uses."""

    def __init__(
        self,
        name: str,
        limits: AdmissionLimits,
        log: logging.Logger,
        on_refused: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`name` of the port, for logs; `on_refused` is called with a closed label for each connection turned away."""
        self.admission = Admission(limits)
        self._name = name
        self._on_refused = on_refused
        self._lines = LimitedLog(log)
        self._loop = asyncio.get_running_loop()
        self._connections: dict[int, AdmittedConnection] = {}
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
            self._ssl = {"ssl": ssl, "ssl_handshake_timeout": handshake_s, "ssl_shutdown_timeout": SSL_SHUTDOWN_S}
        self._factory = factory
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
        for connection in list(self._connections.values()):
            if not connection.is_proven:
                connection.drop()

    def close(self) -> None:
        """Stops listening and ends TLS handshakes; the protocol closes the other connections."""
        if self._retry is not None:
            self._retry.cancel()
        for sock in self._listening:
            self._loop.remove_reader(sock)
            sock.close()
        self._listening = []
        for connection in list(self._connections.values()):
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
            kind = listening.family, listening.type, listening.proto
            self._arrived(AdmittedConnection(*kind, fileno=descriptor), peer)

    def _arrived(self, connection: AdmittedConnection, peer: tuple[Any, ...]) -> None:
        address = str(peer[0])
        source = source_of(address)
        verdict = self.admission.arrive(source, self._loop.time())
        if isinstance(verdict, Refused):
            _reset(connection)
            who = "the network" if verdict.reason == "total-rate" else source
            self._refused(verdict.reason, f"{who} opens too many connections")
            return

        if verdict.evicted is not None:
            self._evict(verdict.evicted, "a newer one")
        connection.admit(self, verdict.ticket, address, source)
        self._connections[verdict.ticket] = connection
        if self._ssl:
            connection.count(lambda: connection.is_proven, partial(self._flooded, connection))
        task = self._loop.create_task(self._set_up(connection))
        self._setting_up.add(task)
        task.add_done_callback(self._setting_up.discard)

    def _flooded(self, connection: AdmittedConnection, records: int) -> None:
        self._loop.call_soon(connection.drop)
        self._refused("flood", f"{records} TLS records from {connection.source}")

    async def _set_up(self, connection: AdmittedConnection) -> None:
        make = partial(self._factory, connection)
        try:
            connection.transport, _ = await self._loop.connect_accepted_socket(make, connection, **self._ssl)
        except (OSError, TimeoutError, EOFError):
            connection.close()  # a failed handshake: scanners cause many, so there is no log line for each
        except BaseException:  # cancelled too: the descriptor is freed in any case, and the error goes on
            connection.close()
            raise

    def left(self, connection: AdmittedConnection) -> None:
        """A connection's descriptor is closed."""
        self.admission.leave(connection.ticket)
        self._connections.pop(connection.ticket, None)

    def _evict(self, ticket: int, what_for: str) -> None:
        connection = self._connections[ticket]
        connection.drop()
        self._refused(
            "busy", f"a connection from {connection.source} that had proven no key was dropped for {what_for}"
        )

    def _failed(self, error: OSError) -> None:
        """After a failed `accept`: pauses, since the socket stays readable, and frees descriptors for the next ones."""
        for sock in self._listening:
            self._loop.remove_reader(sock)
        self._retry = self._loop.call_later(RETRY_S, self._listen)
        for _ in range(ACCEPTS_AT_ONCE if error.errno in _WANT else 0):
            ticket = self.admission.relieve()
            if ticket is not None:
                self._evict(ticket, "want of file descriptors")
        if error.errno:
            text = os.strerror(error.errno)
        else:
            text = type(error).__name__
        self._lines.warning(("accept", error.errno), f"{self._name}: no connection can be accepted ({text})")

    def _refused(self, reason: str, text: str) -> None:
        self._lines.warning(reason, f"{self._name}: connection refused: {text} ({reason})")
        self._on_refused(reason)


async def connected(address: Address) -> CountedSocket:
    """A TCP connection to the first machine with this name that takes one. Raises OSError."""
    loop = asyncio.get_running_loop()
    failed = OSError("no address")
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, where in found:
        sock = CountedSocket(family, kind, protocol)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, where)
            return sock
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:  # cancelled
            sock.close()
            raise
    raise failed


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
