"""Addresses from mDNS: found gateways, and the stored announcements under a flood of false ones."""

from __future__ import annotations

import logging
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zeroconf.asyncio import AsyncServiceInfo

from edgespec.parts.mdns.browser import Browser
from edgespec.parts.mdns.records import MAX_ADDRESSES, PRIVATE, read_announcement, service_type
from edgespec.parts.mdns.table import MAX_ENTRIES, MAX_PER_HOST, Announcements
from edgespec.shared.address import Address
from edgespec.shared.nearby import GATEWAY, Found
from tests.parts.mdns.browsing import found_by

SERVICE = service_type(GATEWAY)
KEY = "0123456789abcdef"
SPKI = bytes(range(32))


def announcement(name: str = "dept gateway", **changes: Any) -> AsyncServiceInfo:
    txt = {"v": "1", "kh": KEY, "th": SPKI.hex(), "path": "/link"} | changes.pop("txt", {})
    fields: dict[str, Any] = {"port": 7443, "parsed_addresses": ["10.0.0.1"], "server": "x.local."} | changes
    return AsyncServiceInfo(SERVICE, f"{name}.{SERVICE}", properties=txt, **fields)


def test_an_announcement_gives_name_addresses_and_key() -> None:
    assert read_announcement(announcement()) == Found("dept gateway", (Address("10.0.0.1", 7443),), KEY, SPKI)


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


def fakes(table: Announcements[str], count: int, first: int = 0) -> int:
    """Adds announcements, each with a host of its own; returns how many were stored."""
    return sum(table.put(f"fake {n}", [f"10.0.{n // 250}.{n % 250}"], f"fake {n}") for n in range(first, first + count))


@pytest.mark.claim("two-silent-fakes-cost-nothing-where-the-last-address-is-good")
def test_a_flood_of_newcomers_does_not_push_out_what_has_not_failed() -> None:
    table = Announcements[str]()
    assert table.put("real", ["10.9.9.9"], "real")
    assert fakes(table, 1000) == MAX_ENTRIES - 1
    assert table.values()[0] == "real" and len(table.values()) == MAX_ENTRIES


def test_a_latecomer_finds_room_as_soon_as_one_has_failed() -> None:
    table = Announcements[str]()
    fakes(table, MAX_ENTRIES)
    assert not table.put("real", ["10.9.9.9"], "real")
    table.failed(lambda value: value == "fake 3")
    assert table.put("real", ["10.9.9.9"], "real")
    assert "real" in table and "fake 3" not in table


def test_one_host_has_few_entries_and_cannot_take_those_of_others() -> None:
    table = Announcements[str]()
    assert sum(table.put(f"fake {n}", ["10.0.0.66"], f"fake {n}") for n in range(200)) == MAX_PER_HOST
    assert table.put("real", ["10.0.0.1"], "real")
    table.failed(lambda value: value.startswith("fake"))
    assert table.put("another", ["10.0.0.66"], "another")
    assert "real" in table and len(table.values()) == MAX_PER_HOST + 1


def test_what_failed_is_tried_last_and_what_changes_is_new() -> None:
    table = Announcements[str]()
    for name in ("a", "b", "c"):
        table.put(name, [name], name)
    assert table.failed(lambda value: value == "a") == ["a"]
    assert table.values() == ["b", "c", "a"]
    table.put("a", ["a"], "a")  # announced again, as mDNS does periodically: not a reason to try it first
    assert table.values() == ["b", "c", "a"]
    table.put("a", ["a"], "a elsewhere")
    assert table.values() == ["b", "c", "a elsewhere"]
    table.remove("b")
    table.remove("nobody")
    assert table.values() == ["c", "a elsewhere"]


NAMES = st.integers(0, 100)


@given(st.lists(st.tuples(st.sampled_from(["put", "failed", "remove"]), NAMES, st.integers(0, 30)), max_size=300))
def test_the_table_is_bounded_whatever_happens(moves: list[tuple[str, int, int]]) -> None:
    table = Announcements[tuple[int, int]]()
    known = dict[str, tuple[int, int]]()
    for move, name, host in moves:
        if move == "put" and table.put(str(name), [str(host)], (name, host)):
            known[str(name)] = name, host
        elif move == "failed":
            table.failed(lambda value: value[1] == host)  # noqa: B023
        elif move == "remove":
            table.remove(str(name))
        values = table.values()
        assert len(values) <= MAX_ENTRIES and set(values) <= set(known.values())
        assert all(sum(value[1] == one for value in values) <= MAX_PER_HOST for one in range(31))
