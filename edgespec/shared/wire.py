"""Drives one session (core/protocol/session.py) over one WebSocket, for both ends: reads, writes, timers, the end.

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

from websockets.asyncio.connection import broadcast
from websockets.exceptions import ConnectionClosed

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.handshake import CloseCode, shown
from edgespec.core.protocol.messages import MAX_FRAME_BYTES, AnyBody, Bye
from edgespec.core.protocol.session import Event, Linked, Session, State, together
from edgespec.shared.flow_limit import FlowLimited

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
        self.ws, self.session = ws, session
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
            return self._why if self._ended.done() else reader.result()
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
            self._error, self._why = error, why
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
        return self._ended.done() or self.session.state is State.CLOSED

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
        while self.session.state is not State.CLOSED:
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
