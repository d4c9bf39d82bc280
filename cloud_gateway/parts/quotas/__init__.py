"""Quotas of API keys: how many tokens one may use in a minute (`limits.key_tokens_per_minute`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from cloud_gateway.part import Foundation, GatewayPart, Running
from edgespec.shared.settings import Section

if TYPE_CHECKING:
    from cloud_gateway.api.admission import KeyAdmission


class QuotaSection(Section, frozen=True):
    """[limits]: bounds on each API key."""

    key_tokens_per_minute: Annotated[int, Meta(ge=0, le=2**53)] = 0


class Limiting(Running):
    """Limits each key to so many tokens."""

    def __init__(self, tokens_per_minute: int) -> None:
        self._tokens_per_minute = tokens_per_minute

    def admission(self) -> KeyAdmission:
        from cloud_gateway.parts.quotas.minute import MinuteQuota

        return MinuteQuota(self._tokens_per_minute)


def start_limiting(gateway: Foundation) -> Running:
    """Nothing runs if tokens are not limited, as by default."""
    tokens = gateway.settings.of(QuotaSection).key_tokens_per_minute
    if tokens:
        return Limiting(tokens)
    return Running()


PART = GatewayPart(
    "quotas",
    {"limits": QuotaSection},
    example=Path(__file__).with_name("gateway.toml"),
    start=start_limiting,
)
