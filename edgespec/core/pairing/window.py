"""When the gateway pairs, and with which code: the window that the operator opens.

A window is open for 120 s. A `Start` with the nameplate of the code shown is an attempt; one that fails burns the code
and a new one is shown. Five failed attempts, the end of the 120 s, or a success close the window until the operator
opens it again. A `Start` with another nameplate is not counted and burns nothing; nor is an exchange that ends before
its `Confirm`, since the gateway proves nothing before the worker does. Its source has to wait longer after each one.

While an attempt runs, others are refused as busy. One that has been silent for `PARKED_S` before its `Confirm` is
ended when another one starts.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass

from edgespec.core.errors import LocalProtocolError, PairingError, RemoteProtocolError
from edgespec.core.pairing.exchange import Entropy, ExchangeState, GatewayExchange, Party, Peer
from edgespec.core.pairing.messages import (
    Accepted,
    Code,
    PairingFailed,
    PairingMessage,
    Reason,
    new_code,
)

FREE_FAILURES = 1
"""Failures that cost no delay: a person mistypes a code once."""
FIRST_DELAY_S = 1.0
MAX_DELAY_S = 60.0
FORGET_S = 600.0
"""After this long without a failure a source's count is reset."""
MAX_SOURCES = 1024
"""Sources whose failures are stored, about 200 bytes each; an attacker with more can reset its own delays."""


class Delays:
    """How long each source has to wait before its next attempt: 1, 2, 4 … 60 s after failures in a row.

    A source is one IPv4 address or one IPv6 /64 network.
    """

    def __init__(self) -> None:
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Number of failures and time of the last one; the source that failed longest ago comes first."""

    def wait_s(self, source: str, now: float) -> float:
        """Seconds until this source may try again; 0.0 if it may now."""
        failures, last = self._failures.get(source, (0, 0.0))
        if failures <= FREE_FAILURES or now - last >= FORGET_S:
            return 0.0
        doublings = min(failures - FREE_FAILURES - 1, 16)  # 2**16 s is far beyond the maximum
        return max(0.0, last + min(FIRST_DELAY_S * 2.0**doublings, MAX_DELAY_S) - now)

    def failed(self, source: str, now: float) -> None:
        failures, last = self._failures.pop(source, (0, now))
        self._failures[source] = (1 if now - last >= FORGET_S else failures + 1), now
        while len(self._failures) > MAX_SOURCES:
            self._failures.popitem(last=False)


WINDOW_S = 120.0
ATTEMPT_S = 15.0
"""Maximum duration of one attempt, which takes three round trips and 20 ms of arithmetic."""
STEP_S = 5.0
"""Maximum silence in an attempt."""
PARKED_S = 2.0
"""Silence after which an attempt ends when another one starts: several times the longest round trip on earth."""
MAX_FAILURES = 5


class Window(enum.Enum):
    CLOSED = "closed"
    OPEN = "open"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Shown:
    """A code to show to the operator; it stops working at `expires_at` (seconds of the caller's clock)."""

    code: Code
    expires_at: float


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt failed and its code is burnt, except for a version that is too old; after `left` more failures the
    window closes."""

    reason: Reason
    left: int
    detail: str = ""
    """What to add to the reason's sentence."""


@dataclass(frozen=True, slots=True)
class Paired:
    """A worker is stored under `name`, which is unique; the window is closed."""

    peer: Peer
    name: str


@dataclass(frozen=True, slots=True)
class WindowClosed:
    """The window closed without a pairing; None: the operator closed it."""

    reason: Reason | None


Event = Shown | AttemptFailed | Paired | WindowClosed

TRANSITIONS: dict[tuple[Window, str], Window] = {
    (Window.CLOSED, "open"): Window.OPEN,
    (Window.OPEN, "begin"): Window.BUSY,
    (Window.OPEN, "close"): Window.CLOSED,
    (Window.BUSY, "failure"): Window.OPEN,
    (Window.BUSY, "no attempt"): Window.OPEN,
    (Window.BUSY, "close"): Window.CLOSED,
    (Window.BUSY, "paired"): Window.CLOSED,
}


class PairingWindow:
    """The gateway's pairing, one attempt at a time. Everything that happens appears in `events()` as well."""

    def __init__(self, me: Party, spki_hash: bytes, entropy: Entropy) -> None:
        """`spki_hash`: of the TLS key that the gateway serves with."""
        self.state = Window.CLOSED
        self.failures = 0
        self._me = me
        self._spki = spki_hash
        self._entropy = entropy
        self._code: Code | None = None
        self._delays = Delays()
        self._exchange: GatewayExchange | None = None
        self._last_ended: GatewayExchange | None = None
        self._source = ""
        """The source of the attempt that runs."""
        self._closes_at = self._attempt_ends_at = self._received_at = 0.0
        self._why_closed = Reason.WINDOW
        self._events: list[Event] = []

    @property
    def wake_at(self) -> float | None:
        """When `poll` must be called next (seconds of the caller's clock); None while nothing is due."""
        if self.state is Window.CLOSED:
            return None
        if self.state is Window.OPEN:
            return self._closes_at
        return min(self._closes_at, self._attempt_ends_at, self._received_at + STEP_S)

    def events(self) -> list[Event]:
        """Events since the last call, oldest first."""
        events = self._events
        self._events = []
        return events

    def open(self, now: float) -> Code:
        """Opens the window and returns the first code. Raises PairingError while it is open already."""
        if self.state is not Window.CLOSED:
            raise PairingError("A pairing window is open already; finish or cancel that one first.")
        self._go("open")
        self.failures = 0
        self._closes_at = now + WINDOW_S
        return self._show()

    def close(self, reason: Reason | None = None) -> None:
        """Closes the window, and ends an attempt that runs; the code is gone."""
        if self.state is Window.CLOSED:
            return

        self._end_attempt()
        self._go("close")
        self._why_closed = reason or Reason.WINDOW
        self._code = None
        self._events.append(WindowClosed(reason))

    def poll(self, now: float) -> None:
        """Ends the attempt or the window whose time is over."""
        if self.state is not Window.CLOSED and now >= self._closes_at:
            self.close(Reason.EXPIRED)
        elif self._exchange is not None and now >= min(self._attempt_ends_at, self._received_at + STEP_S):
            self.abandon(self._exchange, Reason.ABANDONED, now)

    def begin(self, source: str, nameplate: int, now: float) -> GatewayExchange:
        """Begins an attempt, for a `Start` with this nameplate from `source`; may evict a parked attempt.

        Raises PairingFailed if no window is open, the source has to wait, the nameplate is another one, or an
        attempt runs that is not parked.
        """
        self.poll(now)
        if self.state is Window.CLOSED or self._code is None:
            raise PairingFailed(self._why_closed)
        if self._delays.wait_s(source, now) > 0:
            raise PairingFailed(Reason.DELAYED)
        if nameplate != self._code.nameplate:
            self._delays.failed(source, now)
            raise PairingFailed(Reason.NAMEPLATE)

        if self._exchange is not None:
            self._evict(self._exchange, now)
        self._go("begin")
        self._source = source
        self._received_at = now
        self._attempt_ends_at = now + ATTEMPT_S
        self._exchange = GatewayExchange(self._code, self._me, self._spki, self._entropy)
        return self._exchange

    def receive(self, exchange: GatewayExchange, message: PairingMessage, now: float) -> PairingMessage | None:
        """Takes a message of the attempt and returns the answer, if any; at state `PROVEN` the worker is to be stored.

        Raises PairingFailed or RemoteProtocolError; the attempt has then failed and its code is burnt.
        """
        self.poll(now)
        self._require_running(exchange)
        self._received_at = now
        try:
            return exchange.receive(message)
        except PairingFailed as failure:
            if failure.reason is Reason.VERSION:
                self._outdated(exchange, failure, now)
            else:
                self.abandon(exchange, failure.reason, now)
            raise
        except RemoteProtocolError:
            self.abandon(exchange, Reason.PROTOCOL, now)
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

    def abandon(self, exchange: GatewayExchange, reason: Reason, now: float) -> None:
        """The attempt failed outside the exchange: link gone, time over, nothing stored. No matter if it had ended."""
        if exchange is not self._exchange:
            return

        self._last_ended = exchange
        if reason is Reason.ABANDONED and exchange.state in (ExchangeState.NEW, ExchangeState.REPLIED):
            self._drop(now)
            return

        self._delays.failed(self._source, now)
        self._end_attempt()
        self._go("failure")
        self.failures += 1
        self._events.append(AttemptFailed(reason, MAX_FAILURES - self.failures))
        if self.failures >= MAX_FAILURES:
            self.close(Reason.BURNT)
        else:
            self._show()

    def _outdated(self, exchange: GatewayExchange, failure: PairingFailed, now: float) -> None:
        """Ends an attempt of an older version. Nothing of the code was sent or tried, so it stays valid."""
        self._last_ended = exchange
        self._drop(now)
        self._events.append(AttemptFailed(failure.reason, MAX_FAILURES - self.failures, failure.detail))

    def _evict(self, running: GatewayExchange, now: float) -> None:
        """Ends a parked attempt for a new one, or raises PairingFailed."""
        if running.state is not ExchangeState.REPLIED or now - self._received_at < PARKED_S:
            raise PairingFailed(Reason.BUSY)
        self._drop(now)

    def _drop(self, now: float) -> None:
        """Ends an exchange that does not count as an attempt at the code."""
        self._delays.failed(self._source, now)
        self._end_attempt()
        self._go("no attempt")

    def why_over(self, exchange: GatewayExchange) -> Reason:
        """Why an attempt that is no longer running ended, for its peer."""
        if self.state is Window.CLOSED:
            return self._why_closed
        if exchange is self._last_ended:
            return Reason.ABANDONED
        return Reason.BUSY

    def _require_running(self, exchange: GatewayExchange) -> None:
        if exchange is not self._exchange:
            raise PairingFailed(self.why_over(exchange))

    def _show(self) -> Code:
        self._code = new_code(self._entropy, self._spki, self._code.nameplate if self._code else 0)
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
