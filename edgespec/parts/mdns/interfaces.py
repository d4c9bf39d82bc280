"""The network interfaces on which mDNS is used.

Container bridges and VPNs are excluded: announcements there reach no worker, or the wrong network.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ifaddr

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
POLL_S = 10.0
"""Interval at which changes of the interfaces are checked."""
MIN_SUSPEND_S = 1.0
"""A shorter one loses nothing: announcements are sent twice, a second apart (RFC 6762, section 8.3)."""
MAX_INTERFACES = 16
"""Linux lets a socket join 20 multicast groups (net.ipv4.igmp_max_memberships)."""

_UP, _LOOPBACK, _POINT_TO_POINT, _MULTICAST = 0x1, 0x8, 0x10, 0x1000  # netdevice(7)
_NO_HARDWARE_HEADER = 65534
_SKIPPED = re.compile(
    r"(docker|virbr|lxcbr|lxdbr|podman|cni|flannel|cali|vxlan|kube|tailscale|zt|wg|tun|tap|utun|ppp|ipsec|nordlynx|"
    r"vmnet|vboxnet|vnet|br-[0-9a-f]{12}\Z)"
)

logging.getLogger("zeroconf").setLevel(logging.CRITICAL)  # this module reports the same in one line


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface on which mDNS is used, with its addresses (without zones)."""

    name: str
    index: int
    ipv4: tuple[str, ...]
    ipv6: tuple[str, ...]
    networks: tuple[Network, ...] = ()
    """The networks of the addresses."""

    @property
    def choice(self) -> str | int:
        """The interface as zeroconf's argument: one IPv4 address, or its index if it has IPv6 only."""
        if self.ipv4:
            return self.ipv4[0]
        return self.index


class Wakes:
    """Whether this machine was suspended since it was last asked: what others announced meanwhile was missed."""

    def __init__(self) -> None:
        self._before_s = suspended_s()

    def happened(self) -> bool:
        before_s = self._before_s
        self._before_s = suspended_s()
        return self._before_s - before_s > MIN_SUSPEND_S


def suspended_s() -> float:
    """Seconds that this machine has been suspended since it was booted (clock_gettime(2))."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def interfaces(only: Sequence[str] | None = None) -> list[Interface]:
    """The interfaces to use mDNS on, or those named in `only`. Loopback counts if it is the only one."""
    configured = [_interface(adapter) for adapter in ifaddr.get_adapters() if adapter.index is not None]
    if only is not None:
        return [one for one in configured if one.name in only]
    usable = [one for one in configured if _is_usable(one.name)]
    return (usable or [one for one in configured if one.name == "lo"])[:MAX_INTERFACES]


def _interface(adapter: ifaddr.Adapter) -> Interface:
    ipv4 = tuple(ip.ip for ip in adapter.ips if isinstance(ip.ip, str))
    ipv6 = tuple(ip.ip[0] for ip in adapter.ips if isinstance(ip.ip, tuple))
    plain = ((ip.ip if isinstance(ip.ip, str) else ip.ip[0], ip.network_prefix) for ip in adapter.ips)
    networks = tuple(ipaddress.ip_network(f"{host}/{prefix}", strict=False) for host, prefix in plain)
    return Interface(adapter.nice_name, adapter.index or 0, ipv4, ipv6, networks)


def _is_usable(name: str) -> bool:
    """Whether the interface may reach other machines of this network (on Linux according to sysfs)."""
    device = Path("/sys/class/net") / name
    if not device.exists():  # not Linux, or another network namespace than the one that sysfs was mounted in
        return name != "lo" and not _SKIPPED.match(name)
    if (device / "bridge").exists():
        return _has_hardware_port(device)
    if _SKIPPED.match(name) or (device / "brport").exists() or (device / "tun_flags").exists():
        return False

    flags = int((device / "flags").read_text(), 16)
    kind = int((device / "type").read_text())
    wanted = _UP | _MULTICAST
    unwanted = _LOOPBACK | _POINT_TO_POINT
    return flags & wanted == wanted and not flags & unwanted and kind != _NO_HARDWARE_HEADER


def _has_hardware_port(bridge: Path) -> bool:
    """Whether a bridge has a hardware port; many workstations have their address on one, for virtual machines."""
    return any((bridge.parent / port.name / "device").exists() for port in (bridge / "brif").iterdir())
