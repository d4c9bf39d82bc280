"""All sources of signs of the owner."""

from __future__ import annotations

from edgespec.worker.presence.bus import Metered, Sessions
from edgespec.worker.presence.cpu import OtherGroups, OtherPrograms
from edgespec.worker.presence.devices import Battery, InputDevices, Terminals
from edgespec.worker.presence.gpu import OtherGpuUse
from edgespec.worker.presence.source import Source


def sources() -> list[Source]:
    """Every source of this machine, not opened yet."""
    return [
        InputDevices(), Terminals(), Sessions(), OtherPrograms(), OtherGroups(), OtherGpuUse(), Battery(), Metered(),
    ]  # fmt: skip
