"""The guards that this part brings to the ports of a program (`edgespec/shared/guards.py`)."""

from __future__ import annotations

from edgespec.parts.flood_guard.records import Records
from edgespec.parts.flood_guard.sources import SourceGuard, SourceLimits
from edgespec.shared.guards import Guards, PortBounds, PortGuard


class FloodGuards(Guards):
    """Guards of ports with TLS, and of those without."""

    def __init__(self, encrypted: SourceLimits, plain: SourceLimits) -> None:
        self._encrypted = encrypted
        self._plain = plain

    def port(self, bounds: PortBounds, *, encrypted: bool) -> PortGuard:
        """The guard of one port."""
        if encrypted:
            return SourceGuard(bounds, self._encrypted)
        return SourceGuard(bounds, self._plain)

    def meter(self) -> Records:
        """A counter for one TLS connection."""
        return Records()
