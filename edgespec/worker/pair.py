"""The calling end of pairing: find the gateway (or another machine) that shows the code, prove the code, store it.

Addresses are only hints, and announcements are untrusted. A gateway that does not fit the code's last digits is skipped
before anything is sent to it; SPAKE2 (edgespec/core/pairing/exchange.py) authenticates the one that does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    WebSocketException,
)

from edgespec.core.errors import (
    AddressError,
    EdgespecError,
    NoGatewayError,
    PairingError,
    RemoteProtocolError,
)
from edgespec.core.pairing.exchange import LINK, ExchangeState, Party, Peer, WorkerExchange
from edgespec.core.pairing.messages import (
    MAX_PAIRING_BYTES,
    Code,
    PairingFailed,
    PairingMessage,
    Reason,
    Refused,
    decode_pairing,
)
from edgespec.core.protocol.messages import encode
from edgespec.shared.address import PAIR_PATH, Address
from edgespec.shared.nearby import Finder
from edgespec.shared.tls import peer_spki_hash
from edgespec.worker.dial import DIAL_S, Race, TurnTaking, dialled, storable

_quiet = logging.getLogger("edgespec.worker.pair.websockets")
_quiet.setLevel(logging.CRITICAL)  # this module raises the same as one sentence

MAX_ADDRESSES = 16
"""Dialled for one code; more announcements than that are an attack."""
STEP_S = 6.0
"""Time for each answer of the gateway, which itself waits for 5 s."""
RETRIES_S = (1.0, 2.0, 4.0)
"""Waits before a busy gateway is tried again: the other attempt ends within 5 s, a delay begins with 1 s."""
_ASK_AGAIN = (Reason.BUSY, Reason.DELAYED)
LISTEN_S = 5.0
"""Time for gateways to announce themselves; most do within one second."""
MAX_KEYS = 64
"""Announced keys that are compared with one code: each fits by chance once in 10,000."""


Record = TypeVar("Record")
Store = Callable[[bytes, bytes, str, str, int], Record]
"""Stores a paired machine: key, SHA-256 of its TLS key, name, address, minimum version. Raises KeyStoreError."""


async def pair(
    code: Code,
    me: Party,
    store: Store[Record],
    addresses: Sequence[Address] = (),
    finder: Finder | None = None,
) -> Record:
    """Pairs with the gateway (or other machine) that shows the code, at one of `addresses` or where `finder` finds it.

    Raises NoGatewayError (nothing there, or something else), PairingError (another gateway; wrong, expired or burnt
    code, no window open, versions that do not meet) and KeyStoreError (it cannot be stored).
    """
    attempt = Pairing(code, me, store)
    if finder is None:
        paired = await attempt.at(addresses)
    else:
        paired = await attempt.nearby(finder)
    if paired is not None:
        return paired

    return attempt.fail()


class _OtherGateway(Exception):
    """The TLS key does not fit the code, or the same gateway was tried at another address before."""


class _Client(TurnTaking):
    """Closes the connection after TLS if the machine is not the wanted one."""

    def __init__(self, pairing: Pairing[Any], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pairing = pairing

    async def handshake(self, *args: Any, **options: Any) -> None:
        """The upgrade to WebSocket. Raises _OtherGateway, RemoteProtocolError (`tls`)."""
        self.spki = peer_spki_hash(self.transport.get_extra_info("ssl_object"))
        self._pairing.check(self.spki)
        await self.turn()
        self._pairing.check(self.spki)  # it may have refused at another address meanwhile
        await super().handshake(*args, **options)


class Pairing(Generic[Record]):
    """One code, and the results at all addresses."""

    def __init__(self, code: Code, me: Party, store: Store[Record]) -> None:
        self._who: str = me.purpose
        if me.purpose == LINK:
            self._who = "gateway"
        self._code = code
        self._me = me
        self._store = store
        self._tried: dict[Address, EdgespecError | None] = {}
        """Every address so far, with its error; None: another gateway is there."""
        self._answered: dict[bytes, PairingFailed] = {}
        """The refusal of the gateway that fits the code, by its TLS key."""
        self._paired: Record | None = None

    async def at(self, addresses: Sequence[Address]) -> Record | None:
        """Tries those that were not tried before; None if none of them pairs. Raises KeyStoreError."""
        fresh = [address for address in dict.fromkeys(addresses) if address not in self._tried]
        fresh = fresh[: MAX_ADDRESSES - len(self._tried)]
        for wait_s in (*RETRIES_S, None):
            race = Race()
            await race.run([partial(self._try, race, address) for address in fresh])
            fresh = [address for address in fresh if self._may_have_time_later(address)]
            if self._paired is not None or not fresh or wait_s is None:
                break
            self._answered.clear()
            await asyncio.sleep(wait_s)

        return self._paired

    async def nearby(self, finder: Finder) -> Record | None:
        """Listens until the gateway that shows the code answers; announcements of other keys are not dialled.

        Raises NoGatewayError if none announces itself, PairingError if only others do, and KeyStoreError.
        """
        fits: dict[bytes, bool] = {}

        def fitting() -> Sequence[Address]:
            addresses: list[Address] = []
            for machine in finder.found():
                if machine.tls_hash not in fits and len(fits) < MAX_KEYS:
                    fits[machine.tls_hash] = self._code.fits(machine.tls_hash)
                if fits.get(machine.tls_hash):
                    addresses += machine.addresses

            if len(self._tried) >= MAX_ADDRESSES:
                return ()
            return [address for address in addresses if address not in self._tried]

        loop = asyncio.get_running_loop()
        ends_at = loop.time() + LISTEN_S
        await finder.start()
        try:
            while not self._answered:
                await finder.until(lambda: bool(fitting()), ends_at - loop.time())
                addresses = fitting()
                if not addresses:
                    break
                if await self.at(addresses) is not None:
                    return self._paired
            announced = len(finder.found())
        finally:
            await finder.close()
        if not announced:
            raise NoGatewayError(
                f"No gateway announced itself by {finder.method} within {LISTEN_S:g} s; give its address: "
                "`edgespec pair ADDRESS CODE`."
            )
        if not self._tried:
            raise PairingError(
                f"{finder.method} shows {announced} gateway{'s' * (announced > 1)} on this network, and not the one "
                "that shows this code, so nothing was sent; check the code, or give the gateway's address."
            )

        return None

    def check(self, spki: bytes) -> None:
        """Raises _OtherGateway unless the machine with this TLS key is the wanted one."""
        if not self._code.fits(spki) or spki in self._answered:
            raise _OtherGateway

    def fail(self) -> Record:
        """Raises the error that summarises all attempts for the user."""
        others = [str(address) for address, error in self._tried.items() if error is None]
        refused = [error for error in self._tried.values() if isinstance(error, PairingError)]
        if refused:
            raise min(
                refused,
                key=lambda error: isinstance(error, PairingFailed) and error.reason is Reason.ABANDONED,
            )

        silent = [str(error) for error in self._tried.values() if error is not None]
        if others:
            what = (
                f"The {self._who} at {' and at '.join(others)} is not the one that shows this code, so nothing was "
                "sent there; check the code, or give the address that is shown with it."
            )
            raise PairingError(" ".join([what, *silent]))

        raise NoGatewayError(" ".join(silent) or f"No address of a {self._who} was given.")

    def _may_have_time_later(self, address: Address) -> bool:
        error = self._tried.get(address)
        return isinstance(error, PairingFailed) and error.reason in _ASK_AGAIN

    async def _try(self, race: Race, address: Address) -> None:
        """Pairs at one address and stores the machine, or notes why not."""
        try:
            peer, spki = await self._pair_at(race, address)
        except _OtherGateway:
            self._tried[address] = None
        except PairingFailed as failure:
            self._tried[address] = failure.at(str(address))
        except EdgespecError as error:
            self._tried[address] = error
        else:
            where = storable(address)
            self._paired = self._store(peer.key, spki, peer.name, where, peer.version)
            race.settle(asyncio.current_task())

    async def _pair_at(self, race: Race, address: Address) -> tuple[Peer, bytes]:
        options: dict[str, Any] = {
            "compression": None,
            "max_size": MAX_PAIRING_BYTES,
            "logger": _quiet,
        }
        options |= {"close_timeout": 2.0, "ping_interval": None}
        try:
            async with dialled(race, partial(_Client, self), address, PAIR_PATH, **options) as ws:
                assert isinstance(ws, _Client)
                return await self._exchange(ws, ws.spki), ws.spki
        except InvalidStatus as error:
            raise self._refused_with(error.response.status_code, address) from None
        except TimeoutError:
            raise NoGatewayError(f"No {self._who} answered at {address} within {DIAL_S:.0f} s.") from None
        except (ssl.SSLError, InvalidHandshake, WebSocketException):
            raise NoGatewayError(
                f"What answers at {address} is not an edgespec {self._who}; check host and port."
            ) from None
        except RemoteProtocolError as error:  # before the first message: a flood, or no certificate that can be read
            raise NoGatewayError(f"What answers at {address} is not an edgespec {self._who}: {error}.") from None
        except AddressError as error:  # of the machine that should lead there
            raise NoGatewayError(str(error)) from None
        except (OSError, EOFError) as error:
            why = getattr(error, "strerror", None) or str(error) or "hung up"
            raise NoGatewayError(f"No {self._who} can be reached at {address} ({why}).") from None

    async def _exchange(self, ws: ClientConnection, spki: bytes) -> Peer:
        try:
            exchange = WorkerExchange(self._code, self._me, spki, os.urandom)
            await _run(ws, exchange)
            return exchange.peer
        except (
            ConnectionClosed,
            TimeoutError,
        ):  # perhaps only this path fails, so its other addresses are tried
            ws.transport.abort()
            raise PairingFailed(Reason.ABANDONED) from None
        except RemoteProtocolError as error:
            await _say(ws, Refused(Reason.PROTOCOL))
            failure = PairingFailed(Reason.PROTOCOL, str(error))
            self._answered[spki] = failure
            raise failure from None
        except PairingFailed as failure:
            self._answered[spki] = failure
            raise

    def _refused_with(self, status: int, address: Address) -> EdgespecError:
        if status == 404:
            return PairingError(
                f"The {self._who} at {address} does not pair: it is older than this worker, or pairing is not set up "
                "there."
            )
        return NoGatewayError(f"What answers at {address} refuses with HTTP {status}.")


async def _run(ws: ClientConnection, exchange: WorkerExchange) -> None:
    await _say(ws, exchange.start())
    while exchange.state is not ExchangeState.PAIRED:
        async with asyncio.timeout(STEP_S):
            message = _decode(await ws.recv())

        try:
            answer = exchange.receive(message)
        except PairingFailed as failure:
            if not isinstance(message, Refused):
                await _say(ws, Refused(failure.reason))
            raise

        if answer is not None:
            await _say(ws, answer)


async def _say(ws: ClientConnection, message: PairingMessage) -> None:
    with contextlib.suppress(ConnectionClosed):  # the reason may be in the receive buffer
        await ws.send(encode(message))


def _decode(data: bytes | str) -> PairingMessage:
    if isinstance(data, str):
        raise RemoteProtocolError("malformed", "the gateway sent what this version does not understand")
    return decode_pairing(data)
