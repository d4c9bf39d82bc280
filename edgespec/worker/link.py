"""The worker's end of the link: connect, check the pinned TLS key, run the session, and reconnect when it ends.

`Link` is one authenticated connection; `keep_linked` is the outer loop. (`async for ws in connect()` of websockets does
not back off after a connection that was accepted and then closed, hence a loop of our own.)
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from websockets.exceptions import WebSocketException

from edgespec.core.errors import AddressError, EdgespecError, RemoteProtocolError
from edgespec.core.protocol.handshake import (
    NONCE_BYTES,
    CloseCode,
    Notice,
    Pin,
    WorkerIdentity,
    final_error,
    notice_of,
    shown,
)
from edgespec.core.protocol.messages import (
    Books,
    Bye,
    Close,
    Commit,
    Extra,
    Open,
    Piece,
    Refuse,
    Share,
    ToWorker,
    WorkerBody,
    WorkerTimes,
)
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.redial import RESTART_S, SETTLED_S, Redial, restart_s
from edgespec.core.protocol.session import (
    DEFAULT_TIMERS,
    Event,
    Linked,
    RttSample,
    Timers,
    WorkerSession,
)
from edgespec.shared.address import BOOKS, FEATURES, LINK_PATH, REQUESTS, TIMES, Address, Tunnelled
from edgespec.shared.log_text import cause
from edgespec.shared.tls import peer_spki_hash
from edgespec.shared.wire import WEBSOCKET_OPTIONS, PinnedClient, Wire
from edgespec.worker.dial import MAX_ADDRESSES, Race, TurnTaking, dialled

log = logging.getLogger("edgespec.worker.link")
_quiet = logging.getLogger("edgespec.worker.link.websockets")
_quiet.setLevel(logging.CRITICAL)  # this module reports the same in one line

LOW_BYTES = 2048
"""The link is writable with at most this much unsent; more would go stale in the buffer."""
_LOOK_EVERY_S = 0.003
UNTRIED_S = 1.0
"""Maximum wait before a round with addresses that were never dialled: they have caused no load yet."""
TUNNELLED_SETTLED_S = 5.0
"""In place of `SETTLED_S` for a link through another machine: such machines come and go with their owners, and another
one is to be taken at once."""
LOST = ("connection lost", "silent")
"""Ends of a link as of a gateway, or its machine, that was ended; through another machine, it may be that one."""

Addresses = Callable[[], Awaitable[Sequence[Address]]]
"""The gateway's possible addresses, best first: last reached, configured, announced."""
TakeExtra = Callable[[bytes], None]
"""Takes the data of a part's message. RemoteProtocolError ends the link."""


class Handler:
    """Callbacks of a link; these do nothing. All are called on the event loop and must not block."""

    extras: Mapping[str, TakeExtra] = {}
    """What takes the messages of parts, by their kinds."""

    def on_up(self, link: Link) -> None:
        """The link is authenticated. A paused worker sends `Pause` again here."""

    def on_message(self, message: ToWorker) -> None:
        """A message of the gateway. A RemoteProtocolError raised here ends the link."""

    def on_piece(self, piece: Piece) -> None:
        """A piece of the target's tokenizer; refused if none was asked for."""
        raise RemoteProtocolError("unexpected", "a piece of a tokenizer that was not asked for")

    def on_figures(self, figures: Books | WorkerTimes) -> None:
        """The gateway's figures of this worker: counts, or times, which follow the counts of the same moment."""

    def on_round_trip(self, rtt_s: float) -> None:
        """A ping was answered after so many seconds."""

    def on_writable(self) -> None:
        """The link is writable: called after every `send`, at once or as soon as that is so again."""

    def on_down(self, why: str) -> None:
        """The link ended, and with it every request; called once for each `on_up`."""


class Link:
    """One authenticated link, as the service uses it. For use on the event loop."""

    def __init__(
        self,
        wire: Wire,
        handler: Handler,
        address: Address,
        pin: Pin,
        branching: int,
    ) -> None:
        """`address`: where the gateway was reached; `pin`: what it proved; `branching`: children of a node that it
        takes at most.
        """
        self.address = address
        self.pin = pin
        self.branching = branching
        self._wire = wire
        self._handler = handler
        self._looking = False

    @property
    def writable(self) -> bool:
        """Whether a delta sent now would leave now. If not, its nodes should stay in the tree (back-pressure)."""
        return self._wire.unsent_bytes <= LOW_BYTES

    def send(self, *bodies: WorkerBody) -> None:
        """Signs and writes messages at once, in one frame; after the end of the link they are dropped, and `on_down`
        follows."""
        if self._wire.over:
            return

        self._wire.send(*bodies)
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def end(self, error: RemoteProtocolError) -> None:
        """Ends the link because of a protocol violation that the daemon found."""
        self._wire.end(error)

    def _look(self) -> None:
        """Calls `on_writable` as soon as the link is."""
        if self._wire.over:
            return

        if self.writable:
            self._looking = False
            self._handler.on_writable()
        else:
            asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)


class _Client(PinnedClient, TurnTaking):
    """Checks the pin, then waits for its turn, then sends its first byte."""


class _Attempt:
    """One attempt to link at one address, from the TLS handshake to the end."""

    def __init__(self, address: Address, race: Race, handler: Handler, clock: Callable[[], float]) -> None:
        self.address = address
        self.notice: Notice | None = None
        """What the gateway has against this worker, if that does not end its attempts."""
        self.link: Link | None = None
        self.linked_s = 0.0
        self.restart_s: float | None = None
        """For how long the gateway is expected back, if the link ended because it went away."""
        self.why = ""
        """Why it ended, as text for the log; empty if another address won."""
        self._race = race
        self._handler = handler
        self._clock = clock
        self._final: EdgespecError | None = None
        """Set by a signed `Refuse` or `Bye` after which reconnecting is useless."""
        self._linked_at = 0.0

    async def run(self, me: WorkerIdentity, pin: Pin, timers: Timers) -> None:
        """Runs the attempt; raises only final errors."""
        self._me = me
        self._pin = pin
        self._task = asyncio.current_task()
        self.why = await self._try(timers)
        text = self.why
        if self.notice is not None:
            text = self.notice.text
        log.warning("link to %s: %s", self.address, text)
        if self._final is not None:
            raise self._final

    async def _try(self, timers: Timers) -> str:
        """Connects, and drives the session to its end; returns why it ended."""
        features = [(FEATURES, f"{REQUESTS}{self._me.requests}"), (FEATURES, BOOKS), (FEATURES, TIMES)]
        features += [(FEATURES, kind) for kind in self._handler.extras]
        options: dict[str, Any] = {
            "logger": _quiet,
            "additional_headers": features,
            **WEBSOCKET_OPTIONS,
        }
        try:
            client = partial(_Client, self._pin)
            async with dialled(self._race, client, self.address, LINK_PATH, **options) as ws:
                assert isinstance(ws, _Client)
                self._pin = ws.pin
                seen_spki = peer_spki_hash(ws.transport.get_extra_info("ssl_object"))
                session = WorkerSession(
                    self._me,
                    ws.pin,
                    seen_spki,
                    os.urandom(NONCE_BYTES),
                    asyncio.get_running_loop().time(),
                    timers,
                )
                return await self._drive(Wire(ws, session, self._take))
        except RemoteProtocolError as error:
            return f"{error} ({error.reason})"
        except AddressError as error:  # the machine that should lead there does not
            return str(error)
        except TimeoutError:
            return "no answer"
        except (
            OSError,
            WebSocketException,
            ImportError,
        ) as error:  # ImportError: for a SOCKS proxy
            return f"cannot connect ({cause(error)})"

    async def _drive(self, wire: Wire) -> str:
        """Runs the session until it ends; returns why, and raises for a violation of the protocol."""
        self._wire = wire
        code = int(CloseCode.GOING_AWAY)
        why = "stopping"
        try:
            why = await wire.run()
            code = CloseCode.NORMAL
            return why
        except RemoteProtocolError as error:
            code = error.close_code
            why = error.reason
            raise
        except asyncio.CancelledError:
            if self.link is not None:
                self.link.send(Bye("stopping"))
            raise
        finally:
            if self.link is not None:
                self.linked_s = self._clock() - self._linked_at
                self._handler.on_down(why)

            await wire.close(code, why)
            closed = wire.ws.protocol.close_rcvd
            if closed is not None:
                self.restart_s = restart_s(closed.code, closed.reason)
            if why == "bye: stopping" or (why in LOST and not isinstance(self.address, Tunnelled)):
                self.restart_s = self.restart_s or RESTART_S[0]

    def _take(self, event: Event) -> None:
        match event:
            case Linked(branching):
                self._race.settle(self._task)
                self.link = Link(self._wire, self._handler, self.address, self._pin, branching)
                self._linked_at = self._clock()
                self._handler.on_up(self.link)
            case RttSample(rtt_s):
                self._handler.on_round_trip(rtt_s)
            case Open() | Commit() | Share() | Close():
                self._handler.on_message(event)
            case Piece():
                self._handler.on_piece(event)
            case Books() | WorkerTimes():
                self._handler.on_figures(event)
            case Extra(kind, data) if kind in self._handler.extras:
                self._handler.extras[kind](data)
            case Extra():
                raise RemoteProtocolError("unexpected", "a message of a part that this worker has not")
            case Refuse():
                self._final = final_error(event.reason, event.message)
            case Bye():
                me = key_id(self._me.key.public)
                reason = shown(event.reason)
                self.notice = notice_of(reason, me)
                self._final = final_error(event.reason, f"The gateway ended the link of this worker, {me} ({reason}).")


async def keep_linked(
    addresses: Addresses,
    me: WorkerIdentity,
    pin: Pin,
    handler: Handler,
    *,
    rng: random.Random,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] | None = None,
    timers: Timers = DEFAULT_TIMERS,
    failed: Callable[[Address], None] = lambda address: None,
    noticed: Callable[[Notice], None] = lambda notice: None,
) -> NoReturn:
    """Keeps one link to the gateway until it is cancelled; then it sends `Bye`.

    Each round dials the first `MAX_ADDRESSES` addresses, 250 ms apart, and continues with the first that has the pinned
    TLS key; `failed` is called for those where the gateway was not, and for a way through another machine whenever a
    link over it ends; `noticed` is called with what the gateway has against this worker if it may be linked again
    later. `clock` (seconds, monotonic) measures how long a link lasted. A gateway that has rotated its identity is
    followed: `Handler.on_up` then gets a link with another pin than the given one, for the caller to store. Raises
    final errors: PairingError (revoked, expired), TokenizerMismatch, RemoteProtocolError (`version`), and whatever
    `addresses` raises.
    """
    redial = Redial(rng.uniform)
    clock = clock or asyncio.get_running_loop().time
    tried: set[Address] = set()
    while True:
        known = await addresses()
        if not known:
            log.warning("no gateway was found; looking again")
        race = Race()
        attempts = [_Attempt(address, race, handler, clock) for address in known[:MAX_ADDRESSES]]
        await race.run([partial(attempt.run, me, pin, timers) for attempt in attempts])

        for attempt in attempts:
            is_tunnelled = isinstance(attempt.address, Tunnelled)
            if attempt.notice is not None:
                noticed(attempt.notice)
            if attempt.link is not None:
                pin = replace(attempt.link.pin, proven_at=time.time())
                _note_end(redial, attempt, clock())
            if attempt.why and (attempt.link is None or is_tunnelled):
                failed(attempt.address)

        tried = tried.intersection(known) | set(known[:MAX_ADDRESSES])
        if set(known) - tried:
            wait_s = rng.uniform(0, UNTRIED_S)
        else:
            wait_s = redial.wait_s(clock())
        log.info("next attempt in %.1f s", wait_s)
        await sleep(wait_s)


def _note_end(redial: Redial, attempt: _Attempt, now: float) -> None:
    """Notes how long a link lasted, when the gateway is back, and whether another process took its place."""
    settled_s = SETTLED_S
    if isinstance(attempt.address, Tunnelled):
        settled_s = TUNNELLED_SETTLED_S
    redial.ended(attempt.linked_s, settled_s)

    if attempt.restart_s is not None:
        redial.restarts(now, attempt.linked_s, attempt.restart_s)
    if attempt.notice is not None and attempt.notice.reason == "superseded":
        redial.contested()
