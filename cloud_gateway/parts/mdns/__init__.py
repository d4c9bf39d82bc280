"""The gateway's half of `edgespec.parts.mdns`: it announces its link port on the local network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cloud_gateway.part import GatewayPart
from edgespec.shared.part import Settings
from edgespec.shared.settings import Section

if TYPE_CHECKING:
    from edgespec.shared.nearby import Nearby


class AnnouncementSection(Section, frozen=True):
    """The key that the part adds to [link] of gateway.toml."""

    mdns: bool = True


def _nearby(settings: Settings) -> Nearby:
    from edgespec.parts.mdns.nearby import Multicast

    return Multicast(announces=settings.of(AnnouncementSection).mdns)


PART = GatewayPart(
    "mdns",
    settings={"link": AnnouncementSection},
    example=Path(__file__).with_name("gateway.toml"),
    nearby=_nearby,
)
