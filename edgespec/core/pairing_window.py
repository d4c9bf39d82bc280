"""When the gateway pairs, and with which code: the window that the operator opens.

A window is open for 120 s. Every `Start` that comes while it is open and idle is an attempt; an attempt that does not
end with a stored worker, whatever the reason, burns the code and a new one is shown. Five failed attempts, the end of
the 120 s, or a success close the window until the operator asks again. While an attempt runs others are told to wait,
which costs no code.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from edgespec.core.errors import LocalProtocolError, PairingError, RemoteProtocolError
from edgespec.core.pairing import Entropy, GatewayExchange, Party, Peer
from edgespec.core.pairing_messages import Accepted, Code, PairingFailed, PairingMessage, Reason

WINDOW_S = 120.0
ATTEMPT_S = 20.0
"""Longest time of one attempt, so that a silent peer does not keep others out."""
MAX_FAILURES = 5


class Window(enum.Enum):
    """The window's state."""

    CLOSED = "closed"
    OPEN = "open"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Shown:
    """A code to show to the operator; it stops working at `expires_at` (seconds of the caller's clock)."""

    code: Code
    expires_at: float


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt failed and its code is burnt; after `left` more failures the window closes."""

    reason: Reason
    left: int


@dataclass(frozen=True, slots=True)
class Paired:
    """A worker is stored under `name`, which tells it from all others; the window is closed."""

    peer: Peer
    name: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The window closed without a pairing; None: the operator closed it."""

    reason: Reason | None


Event = Shown | Failed | Paired | Closed

TRANSITIONS: dict[tuple[Window, str], Window] = {
    (Window.CLOSED, "open"): Window.OPEN,
    (Window.OPEN, "begin"): Window.BUSY,
    (Window.OPEN, "close"): Window.CLOSED,
    (Window.BUSY, "failure"): Window.OPEN,
    (Window.BUSY, "close"): Window.CLOSED,
    (Window.BUSY, "paired"): Window.CLOSED,
}


class PairingWindow:
    """The gateway's pairing, one attempt at a time. Everything that happens appears in `events()` as well."""

    def __init__(self, me: Party, spki_hash: bytes, new_code: Callable[[Entropy, int], Code], entropy: Entropy) -> None:
        """`new_code(entropy, avoid)` makes a code with a nameplate other than `avoid`."""
        self.state = Window.CLOSED
        self.failures = 0
        self._me, self._spki, self._new_code, self._entropy = me, spki_hash, new_code, entropy
        self._code: Code | None = None
        self._exchange: GatewayExchange | None = None
        self._closes_at = self._attempt_ends_at = 0.0
        self._why_closed = Reason.WINDOW
        self._events: list[Event] = []

    @property
    def wake_at(self) -> float | None:
        """When `poll` must be called next (seconds of the caller's clock); None while nothing is due."""
        if self.state is Window.CLOSED:
            return None
        return min(self._closes_at, self._attempt_ends_at) if self.state is Window.BUSY else self._closes_at

    def events(self) -> list[Event]:
        """What happened since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    def open(self, now: float) -> Code:
        """Opens the window and returns the first code. Raises PairingError while it is open already."""
        if self.state is not Window.CLOSED:
            raise PairingError("A pairing window is open already; finish or cancel that one first.")
        self._go("open")
        self.failures, self._closes_at = 0, now + WINDOW_S
        return self._show()

    def close(self, reason: Reason | None = None) -> None:
        """Closes the window, and ends an attempt that runs; the code is gone."""
        if self.state is Window.CLOSED:
            return
        self._end_attempt()
        self._go("close")
        self._why_closed = reason or Reason.WINDOW
        self._code = None
        self._events.append(Closed(reason))

    def poll(self, now: float) -> None:
        """Closes what has run out of time."""
        if self.state is not Window.CLOSED and now >= self._closes_at:
            self.close(Reason.EXPIRED)
        elif self._exchange is not None and now >= self._attempt_ends_at:
            self.abandon(self._exchange, Reason.ABANDONED)

    def begin(self, now: float) -> GatewayExchange:
        """Begins an attempt, for a `Start` that came. Raises PairingFailed where no window is open or it is busy."""
        self.poll(now)
        if self.state is Window.CLOSED:
            raise PairingFailed(self._why_closed)
        if self.state is Window.BUSY or self._code is None:
            raise PairingFailed(Reason.BUSY)
        self._go("begin")
        self._attempt_ends_at = now + ATTEMPT_S
        self._exchange = GatewayExchange(self._code, self._me, self._spki, self._entropy)
        return self._exchange

    def receive(self, exchange: GatewayExchange, message: PairingMessage, now: float) -> PairingMessage | None:
        """Takes a message of the attempt and returns the answer, if any; at state `PROVEN` the worker is to be stored.

        Raises PairingFailed or RemoteProtocolError; the attempt has then failed and its code is burnt.
        """
        self.poll(now)
        self._require_running(exchange)
        try:
            return exchange.receive(message)
        except PairingFailed as failure:
            self.abandon(exchange, failure.reason)
            raise
        except RemoteProtocolError:
            self.abandon(exchange, Reason.PROTOCOL)
            raise

    def stored(self, exchange: GatewayExchange, name: str) -> Accepted:
        """Ends the window with success, after the worker was stored as `name`; returns the last message."""
        self._require_running(exchange)
        last = exchange.stored()
        self._go("paired")
        self._exchange = self._code = None
        self._why_closed = Reason.WINDOW
        self._events.append(Paired(exchange.peer, name))
        return last

    def abandon(self, exchange: GatewayExchange, reason: Reason) -> None:
        """The attempt failed outside the exchange: link gone, time over, nothing stored. No matter if it had ended."""
        if exchange is not self._exchange:
            return
        self._end_attempt()
        self._go("failure")
        self.failures += 1
        self._events.append(Failed(reason, MAX_FAILURES - self.failures))
        if self.failures >= MAX_FAILURES:
            self.close(Reason.BURNT)
        else:
            self._show()

    def _require_running(self, exchange: GatewayExchange) -> None:
        if exchange is not self._exchange:
            raise PairingFailed(self._why_closed if self.state is Window.CLOSED else Reason.ABANDONED)

    def _show(self) -> Code:
        self._code = self._new_code(self._entropy, self._code.nameplate if self._code else 0)
        self._events.append(Shown(self._code, self._closes_at))
        return self._code

    def _end_attempt(self) -> None:
        if self._exchange is not None:
            self._exchange.fail()
            self._exchange = None

    def _go(self, event: str) -> None:
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise LocalProtocolError(f"a pairing window that is {self.state.value} cannot take `{event}`")
        self.state = following
