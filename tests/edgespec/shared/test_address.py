"""Addresses of gateways, as people write them."""

from __future__ import annotations

import pytest

from edgespec.core.errors import AddressError
from edgespec.shared.address import DEFAULT_PORT, Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host", Address("host")),
        (" gw.example.org:99 ", Address("gw.example.org", 99)),
        ("10.0.0.1:1", Address("10.0.0.1", 1)),
        ("wss://host", Address("host", DEFAULT_PORT)),
        ("wss://host:8/link", Address("host", 8)),
        ("fd00::2", Address("fd00::2")),
        ("[fd00::2]", Address("fd00::2")),
        ("wss://[fd00::2]:8/link", Address("fd00::2", 8)),
        ("[fe80::1%eth0]:8", Address("fe80::1%eth0", 8)),
    ],
)
def test_the_usual_ways_to_write_an_address_are_read(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no host"),
        ("ho st", "names no host"),
        ("user@host", "names no host"),
        ("http://host", "begins with http://, but the link to a gateway always uses TLS"),
        ("host:", "the port ``"),
        ("host:65536", "a whole number from 1 to 65535"),
        ("host:７", "a whole number from 1 to 65535"),
        ("fd00:::2", "no valid IPv6 address"),
        ("host/chat", "the path /chat, which no gateway serves"),
    ],
)
def test_anything_else_is_refused_with_the_way_to_write_it(text: str, says: str) -> None:
    with pytest.raises(AddressError) as error:
        parse_address(text)
    assert says in str(error.value)


def test_a_url_leaves_the_zone_of_a_link_local_address_out() -> None:
    assert Address("fe80::1%eth0", 8).url("/link") == "wss://[fe80::1]:8/link"
    assert Address("host", 8).url("/pair") == "wss://host:8/pair"


@pytest.mark.parametrize(
    ("host", "near"),
    [
        ("127.0.0.1", True),
        ("fe80::1%eth0", True),
        ("lab.local", True),
        ("8.8.8.8", False),
        ("gw.example.org", False),
    ],
)
def test_addresses_of_this_network_need_no_proxy(host: str, near: bool) -> None:
    assert Address(host).near is near
