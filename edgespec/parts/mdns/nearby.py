"""What the part brings to either program; zeroconf is imported when something is searched for or announced."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.shared.nearby import GATEWAY, Announced, Announcer, Finder, Kind, Nearby


class Multicast(Nearby):
    """Finds and announces by multicast DNS."""

    def __init__(self, *, searches: bool = True, networks: Sequence[str] = (), announces: bool = True) -> None:
        """`searches`: whether a worker searches for its gateway; `networks`: those in which it dials an address that
        it found, besides private ones; `announces`: whether a gateway announces itself.
        """
        self._searches = searches
        self._networks = networks
        self._announces = announces

    def finder(self, kind: Kind) -> Finder:
        from edgespec.parts.mdns.browser import Browser

        networks = self._networks if kind == GATEWAY else ()
        return Browser(networks=networks, kind=kind)

    def gateway_finder(self, key_hash: str) -> Finder | None:
        if not self._searches:
            return None

        from edgespec.parts.mdns.browser import Browser

        return Browser(wanted=key_hash, networks=self._networks)

    def announcer(self, kind: Kind, machine: Announced) -> Announcer | None:
        if kind == GATEWAY and not self._announces:
            return None

        from edgespec.parts.mdns.advertiser import Advertiser

        return Advertiser(machine, kind=kind)
