"""What the gateway announces (the network itself: test_discovery_live.py, test_discovery_networks.py)."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from edgespec.core.protocol.names import key_id
from edgespec.parts.mdns.advertiser import Advertiser
from edgespec.parts.mdns.interfaces import Interface
from edgespec.parts.mdns.records import read_announcement
from edgespec.shared.nearby import Announced
from tests.support.until import until

KEY = b"k" * 32
SPKI = b"t" * 32
MACHINE = Announced("gw", KEY, SPKI, "0.0.0.0", 7443)
LOOPBACK = replace(MACHINE, host="127.0.0.1")
LAN = Interface("eth0", 2, ("10.0.0.1", "10.0.0.2"), ("fd00::1", "fe80::1"))


@pytest.mark.parametrize("name", ["gw", "a.b.c", "ä" * 64, "x" * 64, "lab-7 @ 3rd floor +"])
def test_any_allowed_name_makes_an_announcement_that_workers_read(name: str) -> None:
    info = Advertiser(replace(MACHINE, name=name))._service([LAN])
    label = info.name.removesuffix("._edgespec._tcp.local.")
    assert len(label.encode()) <= 63
    found = read_announcement(info)
    assert found is not None
    assert (found.key_hash, found.tls_hash) == (key_id(KEY), SPKI)
    assert found.name == label
    assert label.startswith(name[:20])


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("0.0.0.0", ["10.0.0.1", "10.0.0.2"]),
        ("::", ["10.0.0.1", "10.0.0.2", "fd00::1", "fe80::1"]),
        ("10.0.0.2", ["10.0.0.2"]),
        ("fd00::1", ["fd00::1"]),
        ("192.168.0.1", []),
    ],
)
async def test_only_addresses_that_the_link_listens_on_are_announced(host: str, addresses: list[str]) -> None:
    advertiser = Advertiser(replace(MACHINE, host=host))
    advertiser._bound_to = {host}  # as resolved when it starts
    assert advertiser._addresses(LAN) == addresses


async def test_without_a_usable_interface_there_is_one_warning_and_no_failure(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.parts.mdns.interfaces.POLL_S", 0.01)
    advertiser = Advertiser(MACHINE, only=["no-such-interface"])
    looks = list[int]()
    monkeypatch.setattr(advertiser, "_interfaces", lambda: looks.append(1) or Advertiser._interfaces(advertiser))
    with caplog.at_level(logging.WARNING):
        advertiser.start()
        await until(lambda: len(looks) > 3)
        await advertiser.close()
    assert caplog.text.count("edgespec pair wss://HOST:7443 CODE") == 1
    assert "mDNS does not work (no interface to a network has an address)" in caplog.text
    assert not advertiser.works


async def test_a_loopback_host_is_named_in_the_warning(caplog: pytest.LogCaptureFixture) -> None:
    advertiser = Advertiser(LOOPBACK, only=["no-such-interface"])
    advertiser.start()
    await until(lambda: "no interface to a network has the address 127.0.0.1" in caplog.text)
    await advertiser.close()


async def test_closing_before_or_while_starting_is_harmless() -> None:
    advertiser = Advertiser(LOOPBACK, only=["lo"])
    await advertiser.close()
    advertiser.start()
    await advertiser.close()
    await advertiser.close()
