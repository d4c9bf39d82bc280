"""A worker's part with signs of the owner that a test sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edgespec.parts.owner_signs import PART
from edgespec.parts.owner_signs.presence import OwnerPresence
from edgespec.parts.owner_signs.settings import OwnerSection
from edgespec.parts.owner_signs.sources import Source
from edgespec.shared.part import Settings
from edgespec.worker.part import WorkerPart


def with_signs(section: OwnerSection, *sources: Source) -> WorkerPart:
    """The part with these settings and sources, whatever the worker's configuration says."""

    def presence(settings: Settings, changed: Callable[[], None]) -> OwnerPresence:
        return OwnerPresence(section, sources, changed)

    return replace(PART, presence=presence)
