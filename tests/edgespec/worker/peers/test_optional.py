"""A daemon that gets its first peer while it runs."""

from __future__ import annotations

from pathlib import Path

from edgespec.shared.paired import PairedPeers
from edgespec.shared.server_keys import ServerKeyStore
from edgespec.worker.config import PeersSection, RelaySection
from edgespec.worker.peers.optional import Peers
from edgespec.worker.peers.service import PeerService

OLD, NEW, PEER = b"a" * 32, b"b" * 32, b"c" * 32


async def test_a_peer_paired_while_the_daemon_runs_is_a_way_at_once(tmp_path: Path) -> None:
    store = ServerKeyStore(tmp_path)
    settings = "desk", PeersSection(discover=False), RelaySection()
    make = lambda gateway: PeerService(store, *settings, gateway, "", lambda: False)  # noqa: E731
    peers = Peers(PairedPeers(store.folder), listen=False, gateway=OLD, make=make)
    await peers.start()
    assert await peers.now() == [] and peers._service is None
    peers.rotated(NEW)
    PairedPeers(store.folder).add(PEER, b"", "desk-2", "10.0.0.2:7444", 1)
    (way,) = await peers.now()
    assert (way.peer, str(way)) == ("desk-2", "10.0.0.2:7444 (relay desk-2)")
    assert peers._service is not None and peers._service.routes.gateway == NEW
    peers.failed(way)
    await peers.close()
