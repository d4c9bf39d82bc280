"""Dials several addresses of one gateway: TCP and TLS concurrently, and what follows one at a time.

Staggered as in RFC 8305 ("happy eyeballs"), so that an unreachable address costs a quarter of a second and not its
whole time-out. Only TCP and TLS overlap: the gateway's TLS key is checked right after the handshake, nothing is sent to
a machine with another one, and the first with the right one continues. Two concurrent sessions of one worker would end
each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from edgespec.shared.address import Address, Relayed
from edgespec.shared.tls import client_context
from edgespec.shared.wire import FlowLimitedClient

STAGGER_S = 0.25
"""Between the starts of two attempts (RFC 8305, section 8, recommends 250 ms)."""
DIAL_S = 5.0
"""For TCP and TLS to one address."""
UPGRADE_S = 5.0
"""For the WebSocket upgrade after that."""


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
    race: Race, make: Callable[..., TurnTaking], address: Address, path: str, **options: Any
) -> AsyncIterator[ClientConnection]:
    """A WebSocket to one address, from TCP to its end; `make` makes the connection, which checks the TLS key.

    Raises what `connect` of websockets does; TimeoutError after `DIAL_S` or `UPGRADE_S`, not counting the wait for
    the turn.
    """
    loop, held = asyncio.get_running_loop(), False

    async def turn() -> None:
        nonlocal held
        if not held:  # it is, where the upgrade was redirected
            limit.reschedule(None)
            await race.turn.acquire()
            held = True
            limit.reschedule(loop.time() + UPGRADE_S)

    def taking_turns(*args: Any, **more: Any) -> TurnTaking:
        connection = make(*args, **more)
        connection.turn = turn
        return connection

    options |= {"proxy": None if address.near else True, "user_agent_header": None, "open_timeout": None}
    try:
        async with asyncio.timeout(DIAL_S) as limit:
            options |= await _route(address)
            ws = await connect(address.url(path), ssl=client_context(), create_connection=taking_turns, **options)  # type: ignore[arg-type]
        async with ws:
            yield ws
    finally:
        if held:
            race.turn.release()


async def _route(address: Address) -> dict[str, Any]:
    """Where TLS begins: in a tunnel through a peer, at an address of this network, or where a proxy may be used."""
    if isinstance(address, Relayed):
        return {"sock": await address.connect()}
    return {"host": address.host, "port": address.port} if address.near else {}
