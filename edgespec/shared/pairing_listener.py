"""The end of pairing that shows the code: the window that a person opens, and the machines that come to `/pair`.

A gateway pairs workers with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from edgespec.core.errors import KeyStoreError, PairingError, RemoteProtocolError
from edgespec.core.pairing.exchange import LINK, ExchangeState, GatewayExchange, Party
from edgespec.core.pairing.groups import parse_groups
from edgespec.core.pairing.messages import (
    MAX_PAIRING_BYTES,
    SENTENCES,
    PairingFailed,
    PairingMessage,
    Reason,
    Refused,
    Start,
    decode_pairing,
)
from edgespec.core.pairing.window import (
    MAX_FAILURES,
    WINDOW_S,
    AttemptFailed,
    Event,
    Paired,
    PairingWindow,
    Shown,
    WindowClosed,
)
from edgespec.core.protocol.messages import encode
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.signing import SigningKey
from edgespec.shared.address import source_of
from edgespec.shared.log_text import LimitedLog

log = logging.getLogger("edgespec.shared.pairing_listener")

FIRST_MESSAGE_S = 5.0
"""Time for the first message, which a worker sends at once; the port drops silent connections for newer ones before."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """A kind of pairing window, by who comes to it."""

    command: str = "cloud-gateway pair"
    """The command that opens it."""
    guest: str = "worker"
    """The kind of machine that comes to it, for texts."""
    purpose: str = LINK
    """That of `Party`."""


WORKERS = Invitation()


class Named(Protocol):
    """The record of a paired machine."""

    @property
    def name(self) -> str: ...


Store = Callable[[bytes, str, int, tuple[str, ...] | None], Named]
"""Stores a paired machine: key, name, minimum version, groups. Its name may be made unique. Raises KeyStoreError."""


class PairingListener:
    """Pairs one machine each time that a person opens the window. Everything runs on the event loop."""

    def __init__(
        self,
        key: SigningKey,
        name: str,
        spki_hash: bytes,
        store: Store,
        invitation: Invitation = WORKERS,
    ) -> None:
        """`spki_hash`: of the TLS key that this machine serves with; `store`: for who is paired."""
        self._invitation = invitation
        self._window = PairingWindow(Party(key, name, purpose=invitation.purpose), spki_hash, os.urandom)
        self._store = store
        self._operator: asyncio.Queue[Event] | None = None
        self._groups: tuple[str, ...] | None = None
        self._running: asyncio.Timeout | None = None
        """Ends the wait for the next message of the attempt that runs."""
        self._lines = LimitedLog(log)
        self._timer: asyncio.TimerHandle | None = None

    async def pair(self, groups: Sequence[str] = ()) -> AsyncIterator[dict[str, object]]:
        """Opens the window and yields its events; a control handler. Closing the iterator closes the window.

        `groups`: of the worker that is paired in it; if empty, a worker that is listed already keeps its own, and
        a new one gets the default group.

        Yields {"code", "expires_in_s"} for each code to show, {"failed", "message", "left"} for each failed attempt,
        and last {"paired": {"name", "id"}}. Raises PairingError when the window closes without a pairing, or is open
        already.
        """
        self._groups = _groups(groups)
        self._window.open(self._now())
        events = self._operator = asyncio.Queue()
        try:
            self._follow_up()
            while True:
                event = await events.get()
                yield self._message(event)
                if isinstance(event, Paired):
                    return
        finally:
            self._operator = None
            self._window.close()
            self._follow_up()

    async def handle(self, ws: ServerConnection) -> None:
        """Serves one connection to `/pair`, from its first message to the last; the caller hangs up."""
        try:
            await self._serve(ws)
        except ConnectionClosed:
            pass  # counted and logged as a failed attempt, if it was one
        finally:
            self._follow_up()

    async def _serve(self, ws: ServerConnection) -> None:
        source = source_of(_host(ws))
        try:
            async with asyncio.timeout(FIRST_MESSAGE_S):
                data = await ws.recv()
        except TimeoutError:
            await ws.send(encode(Refused(Reason.BUSY)))
            return
        exchange: GatewayExchange | None = None
        try:
            message = _decode(data)
            if not isinstance(message, Start):
                raise PairingFailed(Reason.PROTOCOL)
            exchange = self._window.begin(source, message.nameplate, self._now())
            if self._running is not None and not self._running.expired():  # the attempt that this one replaces
                self._running.reschedule(0)
            await self._exchange(ws, exchange, message)
        except PairingFailed as failure:
            await self._refuse(ws, exchange, failure.reason)
        except RemoteProtocolError as error:
            self._lines.warning("protocol", f"pairing from {source}: {error}")
            await self._refuse(ws, exchange, Reason.PROTOCOL)
        except KeyStoreError as error:
            log.error("pairing from %s: %s", source, error)
            await self._refuse(ws, exchange, Reason.STORAGE)
        finally:
            if exchange is not None:
                self._window.abandon(exchange, Reason.ABANDONED, self._now())  # unless it has ended already

    async def _exchange(self, ws: ServerConnection, exchange: GatewayExchange, message: PairingMessage) -> None:
        while True:
            answer = self._window.receive(exchange, message, self._now())
            if exchange.state is ExchangeState.PROVEN:
                # Written on the event loop: a pairing is rare, and nothing may run between the proof and storing it.
                peer = exchange.peer
                worker = self._store(peer.key, peer.name, peer.version, self._groups)
                await ws.send(encode(self._window.stored(exchange, worker.name)))
                return
            if answer is not None:
                await ws.send(encode(answer))
            message = _decode(await self._next(ws, exchange))

    async def _next(self, ws: ServerConnection, exchange: GatewayExchange) -> bytes | str:
        self._follow_up()
        if self._window.wake_at is None:  # the operator closed the window while a message was sent
            raise PairingFailed(Reason.WINDOW)

        try:
            async with asyncio.timeout_at(self._window.wake_at) as limit:
                self._running = limit
                return await ws.recv()
        except TimeoutError:
            self._window.poll(self._now())
            raise PairingFailed(self._window.why_over(exchange)) from None
        finally:
            if self._running is limit:
                self._running = None

    async def _refuse(self, ws: ServerConnection, exchange: GatewayExchange | None, reason: Reason) -> None:
        if exchange is not None:
            self._window.abandon(exchange, reason, self._now())
        source = source_of(_host(ws))
        self._lines.warning(reason, f"pairing from {source} refused: {reason}")
        self._follow_up()
        await ws.send(encode(Refused(reason)))

    def _follow_up(self) -> None:
        """Sends the window's events to the operator and sets the timer; call it after each change of the window."""
        for event in self._window.events():
            if isinstance(event, Paired):
                log.info("%s (%s) is paired", event.name, key_id(event.peer.key))
            if self._operator is not None:
                self._operator.put_nowait(event)
        if self._timer is not None:
            self._timer.cancel()
        wake_at = self._window.wake_at
        loop = asyncio.get_running_loop()
        if wake_at is not None:
            self._timer = loop.call_at(wake_at, self._wake)
        else:
            self._timer = None

    def _wake(self) -> None:
        self._window.poll(self._now())
        self._follow_up()

    def _message(self, event: Event) -> dict[str, object]:
        match event:
            case Shown(code, expires_at):
                return {
                    "code": str(code),
                    "expires_in_s": round(max(0.0, expires_at - self._now()), 1),
                }
            case AttemptFailed(reason, left, detail):
                why = f" ({detail})" if detail else ""
                return {
                    "failed": reason.value,
                    "message": f"{SENTENCES[reason]}{why}",
                    "left": left,
                }
            case Paired(peer, name):
                return {"paired": {"name": name, "id": key_id(peer.key)}}
            case WindowClosed(reason):
                raise PairingError(self._why_closed(reason))

    def _why_closed(self, reason: Reason | None) -> str:
        again = f"run `{self._invitation.command}` again for a new code"
        if reason is Reason.EXPIRED:
            return f"No {self._invitation.guest} was paired within {WINDOW_S:.0f} s; {again}."
        if reason is Reason.BURNT:
            return (
                f"{MAX_FAILURES} attempts failed, so pairing was stopped; if they were not yours, somebody is trying "
                f"codes; {again}."
            )

        return "The pairing window was closed."

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _groups(names: Sequence[str]) -> tuple[str, ...] | None:
    try:
        if names:
            return parse_groups(names)
        return None
    except ValueError as error:
        raise PairingError(str(error)) from None


def _decode(data: bytes | str) -> PairingMessage:
    """Raises RemoteProtocolError (reason `malformed` or `oversize`)."""
    if isinstance(data, str) or len(data) > MAX_PAIRING_BYTES:
        raise RemoteProtocolError("oversize", "a pairing message that is too long, or is text")
    return decode_pairing(data)


def _host(ws: ServerConnection) -> str:
    address = ws.remote_address
    if isinstance(address, tuple):
        return str(address[0])
    return "an unknown address"
