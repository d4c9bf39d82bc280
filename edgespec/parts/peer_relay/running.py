"""The peers of this daemon, loaded once there are any: most workers have none, and import nothing for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from edgespec.parts.peer_relay.paired import PairedPeers
from edgespec.parts.peer_relay.settings import PeersSection, RelaySection
from edgespec.shared.address import Tunnelled
from edgespec.shared.paired import PairedGateways
from edgespec.worker.config import worker_name
from edgespec.worker.part import RunningPart, WorkerProcess

if TYPE_CHECKING:
    from edgespec.parts.peer_relay.service import PeerService
    from edgespec.shared.control import Handler


class Peers(RunningPart):
    """A `PeerService` that begins with the process if this daemon listens for peers, and otherwise with the first."""

    def __init__(self, paired: PairedPeers, listen: bool, use: bool, make: Callable[[], PeerService]) -> None:
        """`use`: whether peers are ways to the gateway."""
        self._paired = paired
        self._listen = listen
        self._use = use
        self._make = make
        self._service: PeerService | None = None

    async def start(self) -> None:
        """Raises AddressError if the port for peers cannot be bound, KeyStoreError."""
        if self._listen or self._paired.all():
            await self._loaded()

    async def close(self) -> None:
        if self._service is not None:
            await self._service.close()

    async def ways(self) -> Sequence[Tunnelled]:
        """The ways to the gateway through peers, best first; a peer may have been paired since the last call."""
        if not self._use or not self._paired.all():
            return ()

        service = await self._loaded()
        return service.routes.now()

    def handlers(self) -> Mapping[str, Handler]:
        return {"peers": self.show, "invite": self.invite}

    async def show(self) -> dict[str, object]:
        service = await self._loaded()
        return await service.show()

    async def invite(self) -> AsyncIterator[dict[str, object]]:
        service = await self._loaded()
        async for event in service.invite():
            yield event

    async def _loaded(self) -> PeerService:
        if self._service is None:
            self._service = self._make()
            await self._service.start()

        return self._service


def peers_of(worker: WorkerProcess) -> Peers:
    """The peers of one worker. Raises KeyStoreError if their list is damaged."""
    settings = worker.settings.of(PeersSection)
    relay = worker.settings.of(RelaySection)
    keys = worker.state_dir / "keys"

    def linked() -> bool:
        at = worker.linked_at()
        return at is not None and not isinstance(at, Tunnelled)

    def make() -> PeerService:
        from edgespec.parts.peer_relay.service import PeerService
        from edgespec.shared.server_keys import ServerKeyStore

        PairedGateways(keys).all()  # raises if the key folder is gone: a new one would be made, with another identity
        name = worker_name(worker.settings)
        configured = worker.settings.gateway.address
        store = ServerKeyStore(worker.state_dir)
        return PeerService(
            store, name, settings, relay, worker.gateway_key, configured, linked, worker.guards(), worker.nearby
        )

    return Peers(PairedPeers(keys), settings.listen, relay.use, make)
