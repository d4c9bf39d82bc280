"""The addresses of one gateway, and dialling several: TCP and TLS concurrently, and what follows one at a time.

All addresses are hints; the pinned TLS key decides. Attempts are staggered as in RFC 8305 ("happy eyeballs"), so that
an unreachable address costs a quarter of a second and not its whole time-out. Only TCP and TLS overlap: the gateway's
TLS key is checked right after the handshake, nothing is sent to a machine with another one, and the first with the
right one continues. Two concurrent sessions of one worker would end each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from websockets.asyncio.client import ClientConnection, connect

from edgespec.core.errors import KeyStoreError
from edgespec.core.protocol.names import key_id
from edgespec.shared.address import Address, Tunnelled, stored_address
from edgespec.shared.paired import PairedGateways
from edgespec.shared.tls import client_context
from edgespec.shared.wire import FlowLimitedClient

if TYPE_CHECKING:
    from edgespec.shared.nearby import Finder

STAGGER_S = 0.25
"""Between the starts of two attempts (RFC 8305, section 8, recommends 250 ms)."""
DIAL_S = 5.0
"""For TCP and TLS to one address."""
UPGRADE_S = 5.0
"""For the WebSocket upgrade after that."""
MAX_ADDRESSES = 4
"""Dialled in one round. With more, a flood of announcements would make workers dial many and delay each round."""


class TurnTaking(FlowLimitedClient):
    """Waits for `turn` after TLS before it sends its first byte; `turn` is set right after construction."""

    turn: Callable[[], Awaitable[None]]

    async def handshake(self, *args: Any, **options: Any) -> None:
        """The upgrade to WebSocket."""
        await self.turn()
        await super().handshake(*args, **options)


class Race:
    """Attempts at several addresses, of which one has to succeed."""

    def __init__(self, stagger_s: float = STAGGER_S) -> None:
        self.turn = asyncio.Lock()
        """Held by the attempt that has passed TLS."""
        self._stagger_s = stagger_s
        self._tasks: list[asyncio.Task[None]] = []
        self._settled = False

    async def run(self, attempts: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Starts the attempts one after the other and waits for all of them. An exception in one ends all."""
        try:
            for attempt in attempts:
                await self._wait(self._stagger_s)
                if self._settled:
                    break
                self._tasks.append(asyncio.create_task(attempt()))
            while any(not task.done() for task in self._tasks):
                await self._wait(None)
            self._raise()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait(self, timeout_s: float | None) -> None:
        """Waits until one more attempt has ended, or for `timeout_s`. Raises what one raised."""
        self._raise()
        running = [task for task in self._tasks if not task.done()]
        if running:
            await asyncio.wait(running, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    def _raise(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    def settle(self, winner: asyncio.Task[Any] | None) -> None:
        """Ends all attempts but this one, and starts no more."""
        self._settled = True
        for task in self._tasks:
            if task is not winner:
                task.cancel()


@asynccontextmanager
async def dialled(
    race: Race,
    make: Callable[..., TurnTaking],
    address: Address,
    path: str,
    **options: Any,
) -> AsyncIterator[ClientConnection]:
    """A WebSocket to one address, from TCP to its end; `make` makes the connection, which checks the TLS key.

    Raises what `connect` of websockets does; TimeoutError after `DIAL_S` or `UPGRADE_S`, not counting the wait for
    the turn.
    """
    loop = asyncio.get_running_loop()
    held = False

    async def turn() -> None:
        nonlocal held
        if not held:  # it is, if the upgrade was redirected
            limit.reschedule(None)
            await race.turn.acquire()
            held = True
            limit.reschedule(loop.time() + UPGRADE_S)

    def taking_turns(*args: Any, **more: Any) -> TurnTaking:
        connection = make(*args, **more)
        connection.turn = turn
        return connection

    options |= {"user_agent_header": None, "open_timeout": None}
    try:
        async with asyncio.timeout(DIAL_S) as limit:
            options |= await _route(address)
            ws = await connect(
                address.url(path),
                ssl=client_context(),
                create_connection=taking_turns,  # type: ignore[arg-type]
                **options,
            )
        async with ws:
            yield ws
    finally:
        if held:
            race.turn.release()


async def _route(address: Address) -> dict[str, Any]:
    """Where TLS begins: in a tunnel, at an address of this network, or at one to which a proxy may lead."""
    if isinstance(address, Tunnelled):
        return {"proxy": None, "sock": await address.connect()}
    if address.near:
        return {"proxy": None, "host": address.host, "port": address.port}
    return {"proxy": True}


log = logging.getLogger("edgespec.worker.dial")

TUNNELLED = 2
"""Places for ways through other machines in a round of `MAX_ADDRESSES`: with two, one that is gone delays nothing."""
Ways = Callable[[], Awaitable[Sequence[Tunnelled]]]
"""The present ways to the gateway through other machines, best first. Raises KeyStoreError."""


async def no_ways() -> Sequence[Tunnelled]:
    """A worker that reaches its gateway directly only."""
    return ()


class GatewayAddresses:
    """The addresses of one gateway, best first: last reached, configured, announced."""

    def __init__(
        self,
        gateways: PairedGateways,
        key: bytes,
        configured: str,
        finder: Finder | None,
        ways: Ways = no_ways,
    ) -> None:
        """`key`: the gateway's Ed25519 key; `configured`: as text, or "" for none."""
        self._ways = ways
        self.key = key
        self._gateways = gateways
        self._configured = configured
        self._finder = finder
        self._stored = ""
        """The address that the list had when it was last read."""

    async def now(self) -> Sequence[Address]:
        """The current addresses: announced ones after the known ones, since anybody on the network can announce any
        address, and ways through other machines last, in places of a round that are theirs.
        """
        known = map(stored_address, [self._last_good(), self._configured])
        direct = list(filter(None, known))
        if self._finder is not None:
            for gateway in self._finder.found(key_id(self.key)):
                direct += gateway.addresses
        direct = list(dict.fromkeys(direct))

        ways = await self._through_others()
        first = MAX_ADDRESSES - min(len(ways), TUNNELLED)
        return [*direct[:first], *ways, *direct[MAX_ADDRESSES:]]

    async def _through_others(self) -> Sequence[Tunnelled]:
        """The ways through other machines; none while the list of machines cannot be read."""
        try:
            return await self._ways()
        except KeyStoreError as error:  # the worker runs on without them until the list of machines is readable
            log.warning("%s", error)
            return ()

    def failed(self, address: Address) -> None:
        """Records that the gateway was not reached there, or that a link through another machine has ended."""
        if isinstance(address, Tunnelled):
            address.failed()
        elif self._finder is not None:
            self._finder.failed(address)

    def reached(self, address: Address) -> None:
        """Records that the gateway is linked there now: from now on this address is tried first.

        A way through another machine is not stored: a direct one is always tried before.
        """
        where = storable(address)
        asyncio.get_running_loop().run_in_executor(None, self._remember, where)  # it may wait for a lock or the disk

    def _remember(self, address: str) -> None:
        try:
            self._gateways.reached(self.key, address)
        except KeyStoreError as error:  # the next start begins with the former address
            log.warning("%s", error)

    def _last_good(self) -> str:
        """The address that the list of gateways has now, or had when it could be read last."""
        try:
            gateway = self._gateways.get(self.key)
        except KeyStoreError as error:  # damaged or gone while the worker runs, which keeps its pin and the address
            log.warning("%s", error)
            return self._stored

        self._stored = ""
        if gateway is not None:
            self._stored = gateway.address
        return self._stored


def storable(address: Address) -> str:
    """An address as lists of machines keep it; a way through another machine is not kept."""
    if isinstance(address, Tunnelled):
        return ""
    return str(address)
