"""One WebSocket, for both ends: its inflow budget, and the session (core/protocol/session.py) that is driven over it.

Everything runs on the event loop and nothing waits: a message is signed and written to the socket in the call that
sends it, so frames are written in the order of their numbers. Bytes that a peer does not read collect in the socket's
buffer, which is limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.connection import Connection, broadcast
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.protocol import OPEN, SEND_EOF

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.handshake import CloseCode, Pin, shown
from edgespec.core.protocol.inflow import Inflow, InflowLimits
from edgespec.core.protocol.messages import MAX_FRAME_BYTES, AnyBody, Bye
from edgespec.core.protocol.session import Event, Linked, Session, SessionState, together
from edgespec.shared.tls import trusted

ABORT_S = 1.0
"""Time for the close frame to leave before a connection beyond its budget is aborted."""


class FlowLimited(Connection):
    """A connection of `websockets` with an inflow budget, between it and the TLS transport; mixed in at both ends.

    The flow control of `websockets` counts messages only: a peer that sends pings or empty frames faster than they can
    be processed would otherwise block the event loop.
    """

    inflow_limits = InflowLimits()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.inflow = Inflow(self.inflow_limits)
        self.flooded: RemoteProtocolError | None = None
        """Set once the peer has exceeded its budget, which ends the connection."""
        self._held = bytearray()
        self._queue_full = self._reading_paused = False
        self._wake: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio after TCP and TLS handshakes."""
        super().connection_made(transport)
        self.recv_messages.pause = self._pause_for_queue
        self.recv_messages.resume = self._resume_for_queue

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with decrypted bytes."""
        self._held += data
        if self._wake is None:
            self._process()

    def eof_received(self) -> None:
        """Called by asyncio at the end of the stream; with TLS the connection is then closed at once."""
        while self._wake is not None and (self.inflow.wake_at or 0.0) <= self.loop.time():
            self._cancel_wake()
            self._process()
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._held.clear()
        self._cancel_wake()
        super().connection_lost(exc)

    def send_data(self) -> None:
        """Writes the output of `websockets` in one piece, and nothing to a connection that is ending."""
        writes = self.protocol.data_to_send()
        if self.transport.is_closing():
            return

        data = b"".join(writes)
        if data:
            self.transport.write(data)
        if SEND_EOF in writes:
            self.protocol.writes.append(SEND_EOF)
            super().send_data()

    def _process(self) -> None:
        """Passes on the bytes that the budget allows now, and resumes reading only when none wait."""
        self._wake = None
        if self.transport.is_closing():
            self._held.clear()
        if self._held and not self._queue_full:
            try:
                count = self.inflow.take(self._held, self.loop.time())
            except RemoteProtocolError as error:
                self._break_off(error)
                return
            if count:
                data = bytes(self._held[:count])
                del self._held[:count]
                super().data_received(data)
            self._wake_up(self.inflow.wake_at)
        self._set_reading()

    def _wake_up(self, at: float | None) -> None:
        if at is None or not self._held or self._queue_full:
            return
        if at <= self.loop.time():
            self._wake = self.loop.call_soon(self._process)
        else:
            self._wake = self.loop.call_at(at, self._process)

    def _break_off(self, error: RemoteProtocolError) -> None:
        self.flooded = error
        self._held.clear()
        if self.protocol.state is OPEN:
            self.protocol.fail(error.close_code, error.reason)
            self.send_data()
            self.loop.call_later(ABORT_S, self.transport.abort)
        else:
            self.transport.abort()

    def _cancel_wake(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None

    def _pause_for_queue(self) -> None:
        self._queue_full = True
        self._cancel_wake()
        self._set_reading()

    def _resume_for_queue(self) -> None:
        self._queue_full = False
        if self._held and self._wake is None:
            self._wake = self.loop.call_soon(self._process)
        self._set_reading()

    def _set_reading(self) -> None:
        paused = self._queue_full or self._wake is not None
        if paused != self._reading_paused and not self.transport.is_closing():
            self._reading_paused = paused
            (self.transport.pause_reading if paused else self.transport.resume_reading)()


class FlowLimitedClient(FlowLimited, ClientConnection):
    """The argument `create_connection` of `websockets.asyncio.client.connect`."""

    async def handshake(self, *args: Any, **options: Any) -> None:
        """The upgrade to WebSocket. Raises RemoteProtocolError (`flood`), and what `websockets` does."""
        try:
            await super().handshake(*args, **options)
        except (OSError, EOFError, WebSocketException):
            if self.flooded is not None:
                raise self.flooded from None
            raise


class PinnedClient(FlowLimitedClient):
    """Sends nothing, not even an HTTP request, to a machine whose TLS key is not the pinned one or its successor."""

    def __init__(self, pin: Pin, protocol: ClientProtocol, **options: Any) -> None:
        super().__init__(protocol, **options)
        self.pin = pin
        """The identity that the other side must prove; from `handshake` on, perhaps the successor of the given one."""

    async def handshake(self, *args: Any, **options: Any) -> None:
        """The upgrade to WebSocket, once the key is right. Raises RemoteProtocolError: `flood`, those of `trusted`."""
        self.pin = trusted(self.pin, self.transport.get_extra_info("ssl_object"))
        await super().handshake(*args, **options)


WEBSOCKET_OPTIONS: dict[str, Any] = {
    "compression": None,
    "max_size": MAX_FRAME_BYTES,
    "ping_interval": None,  # the session has signed pings of its own, which also measure the round trip
    "close_timeout": 2.0,
    "open_timeout": 10.0,
}
"""Options of both ends for `websockets`."""
MAX_BACKLOG_BYTES = 1 << 20
"""Written but not taken by the operating system; with more the peer is considered not to be reading."""
_CLOSE_S = 2.0
_SIOCOUTQNSD = 0x894B
"""Linux: bytes in a TCP socket's queue that were never sent (linux/sockios.h)."""
_FAULTS = {1002: "websocket", 1007: "websocket", 1009: "oversize"}
"""Close codes with which `websockets` itself ends a connection, because of what the peer sent."""


class Wire:
    """One session on one WebSocket, from the first byte to the last."""

    def __init__(self, ws: FlowLimited, session: Session, handle: Callable[[Event], None]) -> None:
        """`handle` gets every event, in order; an exception in it ends the wire."""
        self.ws = ws
        self.session = session
        self._handle = handle
        self.traffic = Counter[str]()
        """Bytes of messages `sent` and `received`."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._error: RemoteProtocolError | None = None
        self._why = ""
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> str:
        """Runs until the end; returns the reason of an orderly end.

        Raises RemoteProtocolError for a violation by the peer, or the error passed to `end`.
        """
        self.flush()
        reader = self._loop.create_task(self._read())
        try:
            await asyncio.wait({reader, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if self._error is not None:
                raise self._error
            if self._ended.done():
                return self._why
            return reader.result()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def send(self, *bodies: AnyBody) -> None:
        """Signs and writes messages, in one frame if they fit. Raises LocalProtocolError if the state forbids it."""
        self.flush()
        for group in together(bodies, self.session.max_sent):
            self._write(self.session.send(*group))
        self._check_backlog()

    def end(self, error: RemoteProtocolError | None = None, why: str = "") -> None:
        """Makes `run` raise the error, or return `why`. Only the first call counts."""
        if not self._ended.done():
            self._error = error
            self._why = why
            self._ended.set_result(None)

    async def close(self, code: int, reason: str) -> None:
        """Sends the close frame and closes the connection, within two seconds whatever the peer does."""
        with contextlib.suppress(TimeoutError, ConnectionClosed):
            async with asyncio.timeout(_CLOSE_S):
                await self.ws.close(code, reason[:100])
        self.ws.transport.abort()

    @property
    def over(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._ended.done() or self.session.state is SessionState.CLOSED

    @property
    def unsent_bytes(self) -> int:
        """Bytes not sent yet: in the WebSocket's buffer, and in the kernel's if it reports them."""
        sock = self.ws.transport.get_extra_info("socket")
        return self.ws.transport.get_write_buffer_size() + _unsent_in_kernel(sock)

    def flush(self) -> None:
        """Writes the session's own frames and sets its timer."""
        for data in self.session.outgoing():
            self._write(data)
        self._check_backlog()
        wake_at = self.session.wake_at
        if wake_at != float("inf") and (self._timer is None or wake_at < self._timer.when()):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(wake_at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self.session.tick(self._loop.time())
        except RemoteProtocolError as error:
            self.end(error)
        self.flush()

    async def _read(self) -> str:
        why = "closed"
        while self.session.state is not SessionState.CLOSED:
            try:
                data = await self.ws.recv()
            except ConnectionClosed as closed:
                if self.ws.flooded is not None:
                    raise self.ws.flooded from None
                return _why_closed(closed)
            if isinstance(data, str):
                raise RemoteProtocolError("malformed", "a text message instead of a binary one")
            self.traffic["received"] += len(data)
            try:
                events = self.session.receive(data, self._loop.time())
            finally:
                self.flush()  # a refusal is written before the error ends the link
            for event in events:
                self.ws.inflow.proven |= isinstance(event, Linked)
                self._handle(event)
                why = f"bye: {shown(event.reason)}" if isinstance(event, Bye) else why

        return why

    def _write(self, data: bytes) -> None:
        self.traffic["sent"] += len(data)
        broadcast({self.ws}, data)  # writes at once, without waiting for the buffer to drain

    def _check_backlog(self) -> None:
        """Also counts WebSocket pongs, which `websockets` writes to a peer that pings without reading."""
        if self.ws.transport.get_write_buffer_size() > MAX_BACKLOG_BYTES:
            self.end(RemoteProtocolError("slow", "the peer does not read", close_code=CloseCode.SLOW))


def _unsent_in_kernel(sock: socket.socket | None) -> int:
    if sock is None:
        return 0
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), _SIOCOUTQNSD, bytes(4)))[0])
    except OSError:  # not Linux, or closed meanwhile
        return 0


def _why_closed(closed: ConnectionClosed) -> str:
    """Why the connection ended; raises RemoteProtocolError if the peer broke the WebSocket protocol or a limit."""
    if closed.sent is not None and not closed.rcvd_then_sent and closed.sent.code in _FAULTS:
        text = f"the connection broke the WebSocket protocol or its limits ({closed.sent.code})"
        raise RemoteProtocolError(_FAULTS[closed.sent.code], text, close_code=closed.sent.code) from None
    if closed.rcvd is not None:
        return f"closed by the other side ({closed.rcvd.code} {shown(closed.rcvd.reason)})"
    return "connection lost"
