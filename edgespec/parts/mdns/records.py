"""The form of an announcement on the wire: a DNS-SD service with a TXT record of version, keys and path."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from zeroconf import ServiceInfo

from edgespec.core.protocol.names import key_id
from edgespec.parts.mdns.interfaces import Network
from edgespec.shared.address import Address
from edgespec.shared.nearby import GATEWAY, Announced, Found, Kind

TXT_VERSION = "1"
MAX_ADDRESSES = 4
"""Those of one announcement that count."""
PRIVATE: tuple[Network, ...] = tuple(
    ipaddress.ip_network(network)
    for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7", "fe80::/10")
)
"""Networks of announced addresses, besides those of this machine's interfaces (RFC 1918, 3927, 4193, 4291).

Anybody on the network can announce any address, which must not make all workers there dial a host of the internet.
"""


def service_type(kind: Kind) -> str:
    """The DNS-SD service type of a kind."""
    return f"_{kind.name}._tcp.local."


def announcement(kind: Kind, machine: Announced, addresses: Sequence[str]) -> ServiceInfo:
    """The records of a machine at these addresses."""
    own_id = key_id(machine.key)
    service = service_type(kind)
    label = f"{machine.name.encode()[:40].decode(errors='ignore')} {own_id[:6]}"
    return ServiceInfo(
        service,
        f"{label}.{service}",
        parsed_addresses=[*addresses],
        port=machine.port,
        properties={"v": TXT_VERSION, "kh": own_id, "th": machine.spki_hash.hex(), "path": kind.path},
        server=f"{kind.name}-{own_id}.local.",
    )


def read_announcement(info: ServiceInfo, networks: Sequence[Network] = PRIVATE, kind: Kind = GATEWAY) -> Found | None:
    """Decodes an announcement; None if it is not one of this protocol. Its content is untrusted.

    `networks`: those that an address must be in.
    """
    txt = info.decoded_properties
    key_hash = txt.get("kh") or ""
    tls_hash = txt.get("th") or ""
    if txt.get("v") != TXT_VERSION or txt.get("path") != kind.path:
        return None
    if not re.fullmatch(r"[0-9a-f]{16}", key_hash) or not re.fullmatch(r"[0-9a-f]{64}", tls_hash):
        return None

    hosts = sorted((host for host in info.parsed_scoped_addresses() if _is_of_use(host, networks)), key=_rank)
    if not hosts or not info.port:
        return None

    name = "".join(c for c in info.name.removesuffix(f".{service_type(kind)}") if c.isprintable())
    addresses = tuple(Address(host, info.port) for host in hosts[:MAX_ADDRESSES])
    return Found(name[:64], addresses, key_hash, bytes.fromhex(tls_hash))


def _is_of_use(host: str, networks: Sequence[Network]) -> bool:
    """Whether the address is allowed, and can be dialled: an IPv6 link-local one without its zone cannot."""
    address = ipaddress.ip_address(host)
    zoneless = isinstance(address, ipaddress.IPv6Address) and address.is_link_local and address.scope_id is None
    return not zoneless and any(address in network for network in networks)


def _rank(host: str) -> tuple[int, bool]:
    """IPv4, then IPv6, link-local ones last."""
    address = ipaddress.ip_address(host)
    return address.version, address.is_link_local
