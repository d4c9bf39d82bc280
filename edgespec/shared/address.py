"""Parsing and formatting of gateway addresses."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from edgespec.core.errors import AddressError

DEFAULT_PORT = 7443
"""Default of `link.port`, on which a gateway listens for workers."""
FEATURES = "edgespec-features"
REQUESTS = "requests="
"""A header of a worker's upgrade to WebSocket, and its value: the number of requests that it takes at once."""
BOOKS = "books"
"""Another value of that header: the worker takes messages `Books`."""
TIMES = "times"
"""Another value of that header: the worker takes messages `WorkerTimes`."""
LINK_PATH = "/link"
PAIR_PATH = "/pair"
_FORM = "write HOST, HOST:PORT or wss://HOST:PORT, and an IPv6 address in brackets before a port"
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")


def requests_of(features: Iterable[str]) -> int:
    """How many requests a worker with these features takes at once; 0: it does not say."""
    said = [one.removeprefix(REQUESTS) for one in features if one.startswith(REQUESTS)]
    if said and re.fullmatch("[0-9]{1,4}", said[0]):
        return int(said[0])
    return 0


@dataclass(frozen=True, slots=True)
class Address:
    """Host (name, IPv4, or IPv6 without brackets, perhaps with `%zone`) and port of a gateway."""

    host: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        if ":" in self.host:
            return f"[{self.host}]:{self.port}"
        return f"{self.host}:{self.port}"

    @property
    def near(self) -> bool:
        """Whether the host is in this network by its form, so that no outgoing proxy is used."""
        try:
            return ipaddress.ip_address(self.host).is_private
        except ValueError:
            return self.host == "localhost" or self.host.endswith((".local", ".localhost"))

    def url(self, path: str) -> str:
        """`wss://` URL; the zone of a link-local address is left out, since it means nothing to the other side."""
        return f"wss://{Address(self.host.split('%')[0], self.port)}{path}"


def not_counted() -> None:
    """Nothing counts the failures of a way."""


@dataclass(frozen=True, slots=True)
class Tunnelled(Address):
    """The gateway behind another machine: a connection to it begins with a tunnel. `host` and `port` are its."""

    machine: str = ""
    """The name of that machine."""
    connect: Callable[[], Awaitable[socket.socket]] = field(compare=False, kw_only=True)
    """A stream socket whose other end is the gateway. Raises OSError, RemoteProtocolError; AddressError if the machine
    leads to no gateway."""
    failed: Callable[[], None] = field(default=not_counted, compare=False, kw_only=True)
    """Called when the gateway was not reached this way, and when a link over it has ended."""

    def __str__(self) -> str:
        return f"{Address(self.host, self.port)} (relay {self.machine})"

    @property
    def near(self) -> bool:
        """Always: the tunnel is there already, and no proxy is used."""
        return True


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """Reads HOST, HOST:PORT, an IPv6 address, or wss://HOST:PORT with or without a path of this protocol.

    Raises AddressError, which states the fault and the allowed forms.
    """
    scheme, found, rest = text.strip().rpartition("://")
    if found and scheme.lower() != "wss":
        raise AddressError(f"`{text}` begins with {scheme}://, but the link to a gateway always uses TLS: {_FORM}.")

    rest, _, path = rest.partition("/")
    if f"/{path}" not in ("/", LINK_PATH, PAIR_PATH):
        raise AddressError(f"`{text}` has the path /{path}, which no gateway serves: {_FORM}.")

    bracketed = re.fullmatch(r"\[([^\]]*)\](?::(.*))?", rest)
    if bracketed:
        host = bracketed[1]
        port = bracketed[2]
    elif rest.count(":") > 1:
        host = rest
        port = None
    else:
        host, _, port = rest.partition(":")
        port = port if ":" in rest else None
    return Address(_host(host, text), default_port if port is None else _port(port, text))


def stored_address(text: str) -> Address | None:
    """The address, or None for an empty one or one that an earlier version stored in another form."""
    try:
        if text:
            return parse_address(text)
        return None
    except AddressError:
        return None


def _host(host: str, text: str) -> str:
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise AddressError(f"`{text}` holds no valid IPv6 address: {_FORM}.") from None
    elif not _HOST.fullmatch(host):
        raise AddressError(f"`{text}` names no host: {_FORM}.")
    return host


def _port(port: str, text: str) -> int:
    if not (port.isascii() and port.isdecimal() and len(port) < 6 and 1 <= int(port) <= 65535):
        raise AddressError(f"`{text}` has the port `{port}`, but a port is a whole number from 1 to 65535.")
    return int(port)


def source_of(host: str) -> str:
    """The key of one source: an IPv4 address, or the /64 network from which one IPv6 host can choose addresses."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((address, 64), strict=False))

    return str(address)
