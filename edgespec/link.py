"""The worker's end of the link: connect out, check the pinned TLS key, run the session, and come back when it breaks.

`Link` is one authenticated connection; `keep_linked` is the outer loop. (`async for ws in connect()` of websockets does
not back off after a connection that was accepted and then closed, hence a loop of our own.)
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from edgespec.core.errors import AddressError, EdgespecError, RemoteProtocolError
from edgespec.core.handshake import NONCE_BYTES, CloseCode, Pin, WorkerIdentity, final_error
from edgespec.core.messages import Bye, Close, Commit, Open, Refuse, WorkerBody
from edgespec.core.names import key_id
from edgespec.core.reasons import shown
from edgespec.core.session import DEFAULT_TIMERS, Event, Linked, Timers, WorkerSession
from edgespec.shared.address import LINK_PATH, Address, parse_address
from edgespec.shared.guarded import PinnedClient
from edgespec.shared.reduced import cause
from edgespec.shared.tls import client_context, peer_spki_hash
from edgespec.shared.wire import WEBSOCKET_OPTIONS, Wire

log = logging.getLogger("edgespec.link")
_quiet = logging.getLogger("edgespec.link.websockets")
_quiet.setLevel(logging.CRITICAL)  # what it would report is reported here, in one line

LOW_BYTES = 2048
"""With at most this much unsent the link takes another delta; more would only grow old in the buffer."""
_LOOK_EVERY_S = 0.003
SETTLED_S = 60.0
"""A link that was authenticated for this long starts the back-off anew."""

FromGateway = Open | Commit | Close
Addresses = Callable[[], Awaitable[Sequence[str | Address]]]
"""Where the gateway may be now, best first: static addresses and what mDNS found."""


class Handler(Protocol):
    """What the daemon does with a link. All methods are called on the event loop and must not block."""

    def on_up(self, link: Link) -> None:
        """The link is authenticated. A worker that is paused says so again here."""

    def on_message(self, message: FromGateway) -> None:
        """Work from the gateway. A RemoteProtocolError raised here ends the link."""

    def on_writable(self) -> None:
        """The link can take another delta: called after every `send`, soon or when that is so again."""

    def on_down(self, why: str) -> None:
        """The link is gone, and with it every request; called once for each `on_up`."""


class Link:
    """One authenticated link, as the daemon sees it. For use on the event loop."""

    def __init__(self, wire: Wire, handler: Handler) -> None:
        self._wire, self._handler = wire, handler
        self._looking = False

    @property
    def writable(self) -> bool:
        """Whether a delta sent now would leave now. If not, its nodes are better kept in the tree (back-pressure)."""
        return self._wire.unsent_bytes <= LOW_BYTES

    def send(self, body: WorkerBody) -> None:
        """Signs and writes a message at once; once the link is over it is dropped, and `on_down` follows."""
        if self._wire.over:
            return
        self._wire.send(body)
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def end(self, error: RemoteProtocolError) -> None:
        """Ends the link because the gateway broke the protocol in a way that only the daemon could see."""
        self._wire.end(error)

    def _look(self) -> None:
        if self._wire.over:
            return
        if self.writable:
            self._looking = False
            self._handler.on_writable()
        else:
            asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)


class _Attempt:
    """One attempt to be linked, from the TLS handshake to the end."""

    def __init__(self, handler: Handler, clock: Callable[[], float]) -> None:
        self.link: Link | None = None
        self.final: EdgespecError | None = None
        """Set by a signed `Refuse` or `Bye` after which trying again is useless."""
        self.linked_s = 0.0
        self._handler, self._clock = handler, clock
        self._linked_at = 0.0

    async def run(self, where: str | Address, me: WorkerIdentity, pin: Pin, timers: Timers) -> str:
        """Returns why it ended, in words for the log."""
        self._me = me
        try:
            address = parse_address(where) if isinstance(where, str) else where
            options: dict[str, Any] = {
                "create_connection": partial(PinnedClient, pin.spki_hash),
                "user_agent_header": None,
            }
            options |= {"ssl": client_context(), "logger": _quiet} | WEBSOCKET_OPTIONS | _route(address)
            async with connect(address.url(LINK_PATH), **options) as ws:
                assert isinstance(ws, PinnedClient)
                seen_spki = peer_spki_hash(ws.transport.get_extra_info("ssl_object"))
                now = asyncio.get_running_loop().time()
                session = WorkerSession(me, pin, seen_spki, os.urandom(NONCE_BYTES), now, timers)
                return await self._drive(Wire(ws, session, self._take))
        except RemoteProtocolError as error:
            return f"{error} ({error.reason})"
        except TimeoutError:
            return "no answer"
        except (OSError, WebSocketException, AddressError, ImportError) as error:  # ImportError: for a SOCKS proxy
            return f"cannot connect ({cause(error)})"

    async def _drive(self, wire: Wire) -> str:
        self._wire = wire
        code, why = int(CloseCode.GOING_AWAY), "stopping"
        try:
            why = await wire.run()
            code = CloseCode.NORMAL
            return why
        except RemoteProtocolError as error:
            code, why = error.close_code, error.reason
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

    def _take(self, event: Event) -> None:
        match event:
            case Linked():
                self.link = Link(self._wire, self._handler)
                self._linked_at = self._clock()
                self._handler.on_up(self.link)
            case Open() | Commit() | Close():
                self._handler.on_message(event)
            case Refuse():
                self.final = final_error(event.reason, event.message)
            case Bye():
                me, reason = key_id(self._me.key.public), shown(event.reason)
                self.final = final_error(event.reason, f"The gateway ended the link of this worker, {me} ({reason}).")


class Backoff:
    """Waiting times between attempts: full jitter under a ceiling that doubles from 1 to 90 s."""

    def __init__(self, rng: random.Random, first_s: float = 1.0, longest_s: float = 90.0) -> None:
        self._rng, self._first_s, self._longest_s = rng, first_s, longest_s
        self._ceiling_s = first_s

    def next_s(self) -> float:
        """How long to wait now; the next wait may be twice as long."""
        wait_s = self._rng.uniform(0, self._ceiling_s)
        self._ceiling_s = min(2 * self._ceiling_s, self._longest_s)
        return wait_s

    def linked_for(self, seconds: float) -> None:
        """A link lasted this long after authentication: from `SETTLED_S` on the next waits are short again."""
        if seconds >= SETTLED_S:
            self._ceiling_s = self._first_s


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
) -> NoReturn:
    """Keeps one link to the gateway for as long as it is not cancelled; then it says goodbye.

    Raises what is final: PairingError (unpaired, revoked), TokenizerMismatch, RemoteProtocolError (`version`), and
    whatever `addresses` raises. `clock` (seconds, monotonic) tells how long a link lasted.
    """
    backoff, clock = Backoff(rng), clock or asyncio.get_running_loop().time
    while True:
        found = await addresses()
        if not found:
            log.warning("no gateway was found; looking again")
        for address in found:
            attempt = _Attempt(handler, clock)
            why = await attempt.run(address, me, pin, timers)
            if attempt.final is not None:
                raise attempt.final
            log.warning("link to %s: %s", address, why)
            if attempt.link is not None:
                backoff.linked_for(attempt.linked_s)
                break
        wait_s = backoff.next_s()
        log.info("next attempt in %.1f s", wait_s)
        await sleep(wait_s)


def _route(address: Address) -> dict[str, Any]:
    """How to get there: straight where the host is near, else by the system-wide proxy if there is one."""
    try:
        near = ipaddress.ip_address(address.host).is_private
    except ValueError:
        near = address.host == "localhost" or address.host.endswith(".local")
    return {"proxy": None, "host": address.host, "port": address.port} if near else {"proxy": True}
