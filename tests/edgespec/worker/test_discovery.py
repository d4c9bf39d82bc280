"""Decoding of announcements (the network itself: tests/live/test_discovery_*.py)."""

from __future__ import annotations

import logging
from ipaddress import ip_network
from typing import Any

import pytest
from zeroconf.asyncio import AsyncServiceInfo

from edgespec.shared import mdns
from edgespec.shared.address import Address
from edgespec.worker.discovery import MAX_ADDRESSES, PRIVATE, Browser, Found, read_announcement
from tests.support.browsing import found_by

KEY, SPKI = "0123456789abcdef", bytes(range(32))


def announcement(name: str = "dept gateway", **changes: Any) -> AsyncServiceInfo:
    txt = {"v": "1", "kh": KEY, "th": SPKI.hex(), "path": "/link"} | changes.pop("txt", {})
    fields: dict[str, Any] = {"port": 7443, "parsed_addresses": ["10.0.0.1"], "server": "x.local."} | changes
    return AsyncServiceInfo(mdns.GATEWAY.service, f"{name}.{mdns.GATEWAY.service}", properties=txt, **fields)


def test_an_announcement_gives_name_addresses_and_key() -> None:
    assert read_announcement(announcement()) == Found("dept gateway", (Address("10.0.0.1", 7443),), 7443, KEY, SPKI)


def test_addresses_come_best_first() -> None:
    said = ["fe80::1%2", "169.254.1.1", "fd00::1", "10.0.0.1", "fe80::2"]
    info = announcement()
    info.parsed_scoped_addresses = lambda *_: said  # type: ignore[method-assign]  # zones come from the receiving socket
    found = read_announcement(info)
    assert found is not None
    assert [address.host for address in found.addresses] == ["10.0.0.1", "169.254.1.1", "fd00::1", "fe80::1%2"]


@pytest.mark.parametrize(
    "changes",
    [
        {"txt": {"v": "2"}},
        {"txt": {"kh": None}},
        {"txt": {"kh": KEY.upper()}},
        {"txt": {"kh": KEY + "\n"}},
        {"txt": {"th": "00"}},
        {"txt": {"path": "/etc"}},
        {"parsed_addresses": []},
        {"parsed_addresses": ["127.0.0.1", "::1"]},
    ],
)
def test_what_is_not_of_this_protocol_is_left_out(changes: dict[str, Any]) -> None:
    assert read_announcement(announcement(**changes)) is None


async def test_a_hostile_announcement_can_neither_flood_nor_fool_nor_crash() -> None:
    many = [f"10.0.0.{i}" for i in range(1, 100)]
    found = read_announcement(announcement("b\u202ec", parsed_addresses=many))
    assert found is not None
    assert found.name == "bc"
    assert len(found.addresses) == MAX_ADDRESSES


@pytest.mark.claim("only-addresses-of-near-networks-are-dialled")
@pytest.mark.parametrize(
    ("host", "networks", "counts"),
    [
        ("192.168.1.5", PRIVATE, True),
        ("172.32.0.1", PRIVATE, False),
        ("fd12::5", PRIVATE, True),
        ("8.8.8.8", PRIVATE, False),
        ("127.0.0.1", PRIVATE, False),
        ("224.0.0.251", PRIVATE, False),
        ("127.0.0.1", [ip_network("127.0.0.0/8")], True),
        ("141.20.7.9", [*PRIVATE, ip_network("141.20.0.0/16")], True),
        ("::ffff:8.8.8.8", PRIVATE, False),
    ],
)
def test_only_addresses_of_near_networks_are_dialled(host: str, networks: Any, counts: bool) -> None:
    found = read_announcement(announcement(parsed_addresses=[host]), networks)
    assert (found is not None and found.addresses == (Address(host, 7443),)) == counts


async def test_without_a_usable_interface_there_is_a_warning_and_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    browser = Browser(["no-such-interface"])
    with caplog.at_level(logging.WARNING):
        await browser.start()
    assert await found_by(browser, KEY, 0.01) == [] and browser.problem == "no interface leads to a network"
    await browser.close()
    assert "set `gateway.address` in worker.toml" in caplog.text
