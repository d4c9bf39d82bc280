"""A WebSocket connection with an inflow budget, for both ends.

It is placed between the TLS transport and `websockets`, whose flow control counts messages only: a peer that sends
pings or empty frames faster than they can be processed would otherwise block the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.connection import Connection
from websockets.client import ClientProtocol
from websockets.exceptions import WebSocketException
from websockets.protocol import OPEN, SEND_EOF

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.handshake import Pin
from edgespec.core.protocol.inflow import Inflow, InflowLimits
from edgespec.shared.tls import trusted

ABORT_S = 1.0
"""Time for the close frame to leave before a connection beyond its budget is aborted."""


class FlowLimited(Connection):
    """Common part of both ends, mixed into a connection of `websockets`."""

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
        self.recv_messages.pause, self.recv_messages.resume = self._pause_for_queue, self._resume_for_queue

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
