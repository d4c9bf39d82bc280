"""A daemon's place among its peers: what `edgespec peers` shows, invitations, and which addresses a relay dials."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from edgespec.core.errors import PairingError
from edgespec.core.protocol.names import key_id
from edgespec.shared.address import Address
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateways
from edgespec.shared.words import parse_code
from edgespec.worker import report
from edgespec.worker.peers.config import PeersSection, RelaySection
from edgespec.worker.peers.pair import pair_peer
from edgespec.worker.peers.place import Place
from tests.support.peers import HOME, peer

GATEWAY = b"g" * 32
SILENT = PeersSection(discover=False)


@asynccontextmanager
async def placed(folder: Path, settings: PeersSection = HOME, configured: str = "") -> AsyncIterator[Place]:
    PairedGateways(KeyStore(folder).folder).add(GATEWAY, bytes(32), "dept", "10.0.0.1:7443", 1)
    place = Place(KeyStore(folder), folder.name, settings, RelaySection(offer=True), GATEWAY, configured, lambda: True)
    await place.start()
    try:
        yield place
    finally:
        await place.close()


async def test_an_invited_peer_is_shown_with_what_it_does(tmp_path: Path) -> None:
    async with placed(tmp_path / "lab-8") as inviting, placed(tmp_path / "lab-7", SILENT) as invited:
        assert inviting.port is not None and inviting.port._server is not None
        port = next(iter(inviting.port._server.sockets)).getsockname()[1]
        events = inviting.invite()
        shown = await anext(events)
        assert "edgespec peers pair" in report.invitation(shown)
        code = parse_code(str(shown["code"]))
        met = await pair_peer(KeyStore(tmp_path / "lab-7"), "lab-7", code, Address("127.0.0.1", port))
        assert "Paired with the peer lab-7" in report.invitation(await anext(events))
        everything = await invited.show()
        (row,) = everything["peers"]  # type: ignore[misc]
        assert row == {
            "name": "lab-8",
            "id": key_id(met.key),
            "trust": "paired",
            "there": True,
            "address": f"127.0.0.1:{port}",
            "interface": row["interface"],
            "relays": True,
            "drafting_for": [f"dept ({key_id(GATEWAY)})"],
        }
        assert f"drafting for       dept ({key_id(GATEWAY)})" in report.peers(everything)
        (other,) = (await inviting.show())["peers"]  # type: ignore[misc]
        assert (other["name"], other["there"]) == ("lab-7", False)  # it listens nowhere


async def test_a_peer_that_is_away_is_shown_with_the_reason(tmp_path: Path) -> None:
    async with placed(tmp_path / "lab-7", SILENT) as here:
        async with peer(tmp_path / "lab-8") as gone:
            here.peers.add(gone.key.public, b"", "lab-8", str(gone.address), 1)
        (row,) = (await here.show())["peers"]  # type: ignore[misc]
        assert not row["there"]
        assert "The peer lab-8 is not reached at 127.0.0.1" in str(row["because"])


async def test_a_daemon_that_does_not_listen_cannot_invite(tmp_path: Path) -> None:
    async with placed(tmp_path / "lab-7", SILENT) as here:
        with pytest.raises(PairingError, match="set `peers.listen = true`"):
            await anext(here.invite())
    assert report.peers({"peers": [], "relaying": [], "forwarded_bytes": 0}).startswith("no peers")


async def test_a_relay_dials_only_where_it_has_been_or_its_admin_says(tmp_path: Path) -> None:
    async with placed(tmp_path / "lab-8", SILENT, "gw.example.edu:7443") as here:
        assert here.addresses_of(GATEWAY) == [Address("10.0.0.1", 7443), Address("gw.example.edu", 7443)]
        assert here.addresses_of(b"x" * 32) == []


async def test_a_forgotten_peer_is_gone_and_another_name_is_not_found(tmp_path: Path) -> None:
    async with peer(tmp_path / "lab-7") as here, peer(tmp_path / "lab-8") as other:
        met = here.meets(other)
        with pytest.raises(PairingError, match="No machine called `lab-9`"):
            here.peers.forget("lab-9")
        assert here.peers.forget(key_id(met.key)[:6]).key == met.key
        assert here.peers.all() == []
