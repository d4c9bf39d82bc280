"""Judges workers by what they did: worthless drafts and repeated faults end in quarantine (`link.quarantine_keys`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from cloud_gateway.part import GatewayPart
from edgespec.shared.part import Settings
from edgespec.shared.settings import Section

if TYPE_CHECKING:
    from cloud_gateway.links.judge import Judge


class ConductSection(Section, frozen=True):
    """The key that the part adds to [link]."""

    quarantine_keys: Annotated[int, Meta(ge=0, le=64)] = 3


def make_judge(settings: Settings) -> Judge:
    """The judge of one process's links."""
    from cloud_gateway.parts.conduct.judging import Conduct

    return Conduct(settings.of(ConductSection).quarantine_keys)


PART = GatewayPart(
    "conduct",
    {"link": ConductSection},
    example=Path(__file__).with_name("gateway.toml"),
    judge=make_judge,
)
