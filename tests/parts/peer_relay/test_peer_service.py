"""Peers: those paired while a daemon runs, and the addresses of a gateway as a daemon among peers sees them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from edgespec.core.protocol.handshake import Pin
from edgespec.parts.peer_relay import report
from edgespec.parts.peer_relay.paired import PairedPeers
from edgespec.parts.peer_relay.running import Peers
from edgespec.parts.peer_relay.service import PeerService
from edgespec.parts.peer_relay.settings import PeersSection, RelaySection
from edgespec.shared.paired import PairedGateways
from edgespec.shared.server_keys import ServerKeyStore
from tests.parts.peer_relay.daemons import HOME

if TYPE_CHECKING:
    from edgespec.parts.peer_relay.tunnel import Channel

OLD = b"a" * 32
NEW = b"b" * 32
OTHER = b"c" * 32


async def test_a_peer_that_is_relayed_at_present_is_there(tmp_path: Path) -> None:
    """It announces itself nowhere and listens nowhere, so it cannot be asked."""
    store = ServerKeyStore(tmp_path)
    place = PeerService(store, "relay", HOME, RelaySection(offer=True), lambda: OLD, "10.0.0.9:7443", lambda: True)
    await place.start()
    try:
        assert place.port is not None
        place.peers.add(OTHER, b"", "desk-2", "", 1)
        assert (await place._row(place.peers.all()[0]))["there"] is False
        place.port.tunnels[OTHER] = cast("Channel", None)
        shown = await place.show()
    finally:
        place.port.tunnels.clear()
        await place.close()
    assert shown["relaying"] == ["desk-2"]
    text = report.peers(shown)
    assert "state         there: it reaches its gateway through this machine" in text
    assert "relaying      for desk-2; 0.0 MB forwarded so far" in text


def test_a_relay_finds_a_gateway_by_its_key_before_a_rotation_too(tmp_path: Path) -> None:
    """A caller that was away asks for the key that it has paired; the gateway itself shows it the rotation."""
    store = ServerKeyStore(tmp_path)
    gateways = PairedGateways(store.folder)
    gateways.add(OLD, b"s" * 32, "gw", "10.0.0.1:7443", 1)
    present = [OLD]
    place = PeerService(
        store, "relay", HOME, RelaySection(offer=True), lambda: present[-1], "10.0.0.9:7443", lambda: True
    )
    gateways.rotate(OLD, Pin(NEW, b"t" * 32))
    present.append(NEW)
    assert [one.host for one in place.addresses_of(OLD)] == ["10.0.0.1", "10.0.0.9"]
    assert place.addresses_of(NEW) == place.addresses_of(OLD) and place.addresses_of(OTHER) == []
    assert place.routes.gateway() == NEW and place._drafting_for() == [NEW]


async def test_a_peer_paired_while_the_daemon_runs_is_a_way_at_once(tmp_path: Path) -> None:
    store = ServerKeyStore(tmp_path)
    settings = "desk", PeersSection(discover=False), RelaySection()
    make = lambda: PeerService(store, *settings, lambda: OLD, "", lambda: False)  # noqa: E731
    peers = Peers(PairedPeers(store.folder), listen=False, use=True, make=make)
    await peers.start()
    assert await peers.ways() == () and peers._service is None
    PairedPeers(store.folder).add(OTHER, b"", "desk-2", "10.0.0.2:7444", 1)
    (way,) = await peers.ways()
    assert (way.machine, str(way)) == ("desk-2", "10.0.0.2:7444 (relay desk-2)")
    assert peers._service is not None
    way.failed()
    assert peers._service.routes._failures == {OTHER: 1}
    await peers.close()


def test_peers_are_blocks_of_sentences() -> None:
    relayed = {"name": "a", "id": "1", "trust": "paired", "there": True, "because": "it reaches its gateway through us"}
    there = {"name": "b", "id": "2", "trust": "paired", "address": "10.0.0.2:1", "there": True, "interface": "eth0",
             "relays": True, "drafting_for": ["gw (3)"]}  # fmt: skip
    shown = report.peers({"peers": [relayed, there], "relaying": ["a"], "forwarded_bytes": 2_500_000})
    assert "state         there: it reaches its gateway through us" in shown
    assert "address       10.0.0.2:1, by interface eth0" in shown
    assert shown.endswith("relaying      for a; 2.5 MB forwarded so far")
    assert "True" not in shown and "False" not in shown


def test_a_list_of_peers_that_was_never_there_is_empty_and_makes_no_folder(tmp_path: Path) -> None:
    listed = PairedPeers(tmp_path / "keys")
    assert listed.all() == [] and listed.get(OTHER) is None
    assert not (tmp_path / "keys").exists()
