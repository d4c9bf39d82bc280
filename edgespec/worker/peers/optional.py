"""The peers of this daemon, loaded once there are any: most workers have none, and import nothing for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from edgespec.shared.address import Relayed
from edgespec.shared.paired import PairedPeers

if TYPE_CHECKING:
    from edgespec.worker.peers.service import PeerService


class Peers:
    """A `PeerService` that begins with the process if this daemon listens for peers, and otherwise with the first."""

    def __init__(self, paired: PairedPeers, listen: bool, make: Callable[[], PeerService]) -> None:
        self._paired = paired
        self._listen = listen
        self._make = make
        self._service: PeerService | None = None

    async def start(self) -> None:
        """Raises AddressError if the port for peers cannot be bound, KeyStoreError."""
        if self._listen or self._paired.all():
            await self._loaded()

    async def close(self) -> None:
        if self._service is not None:
            await self._service.close()

    async def now(self) -> Sequence[Relayed]:
        """The ways to the gateway through peers, best first; a peer may have been paired since the last call."""
        if self._paired.all():
            return await (await self._loaded()).routes.now()
        return []

    def failed(self, way: Relayed) -> None:
        """The gateway was not reached that way, or a link over it has ended."""
        assert self._service is not None  # the way came from it
        self._service.routes.failed(way)

    async def show(self) -> dict[str, object]:
        return await (await self._loaded()).show()

    async def invite(self) -> AsyncIterator[dict[str, object]]:
        async for event in (await self._loaded()).invite():
            yield event

    async def _loaded(self) -> PeerService:
        if self._service is None:
            self._service = self._make()
            await self._service.start()
        return self._service
