"""The owner of the machine comes first: the worker steps aside at a sign of the owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from edgespec.parts.owner_signs.settings import REMOVED, OwnerSection
from edgespec.shared.part import Settings
from edgespec.worker.part import Presence, WorkerPart


def _presence(settings: Settings, changed: Callable[[], None]) -> Presence:
    from edgespec.parts.owner_signs.presence import OwnerPresence
    from edgespec.parts.owner_signs.watch import sources

    return OwnerPresence(settings.of(OwnerSection), sources(), changed)


def _report(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    from edgespec.parts.owner_signs.report import lines

    return lines(status)


PART = WorkerPart(
    "owner_signs",
    settings={"owner": OwnerSection},
    removed=REMOVED,
    presence=_presence,
    report=_report,
    example=Path(__file__).with_name("worker.toml"),
)
