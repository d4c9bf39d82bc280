"""Gateways and peers on the local network by mDNS (RFC 6762, RFC 6763), without a system daemon.

Public, by module:

- `nearby`: `Multicast`
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.shared.fields import NetworkText
from edgespec.shared.part import Settings
from edgespec.shared.settings import Section
from edgespec.worker.part import WorkerPart

if TYPE_CHECKING:
    from edgespec.shared.nearby import Nearby


class SearchSection(Section, frozen=True):
    """The keys that the part adds to [gateway] of worker.toml."""

    discover: bool = True
    networks: tuple[NetworkText, ...] = ()


def _nearby(settings: Settings) -> Nearby:
    from edgespec.parts.mdns.nearby import Multicast

    search = settings.of(SearchSection)
    return Multicast(searches=search.discover, networks=search.networks)


PART = WorkerPart(
    "mdns",
    settings={"gateway": SearchSection},
    example=Path(__file__).with_name("worker.toml"),
    nearby=_nearby,
)
