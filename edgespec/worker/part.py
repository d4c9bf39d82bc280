"""What a part brings to the worker, and the seams that it may fill.

`edgespec.parts.PARTS` lists the parts of this program. The command line and the loading of the configuration take that
list. The worker's other files get what they need of it, and name no part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from edgespec.shared.command import ConfiguredVerb
from edgespec.shared.part import Lines, Part, Settings, no_lines


class WorkerVerb(ConfiguredVerb):
    """A verb of `edgespec`."""

    configuration = "worker.toml"


@dataclass(frozen=True, slots=True)
class Permission:
    """Whether the worker may draft now."""

    drafting: bool
    reason: str = ""
    """Why it may not, as the gateway gets it; it says nothing about this machine."""
    because: str = ""
    """Why it may not, for the worker's admin."""
    remedy: str = ""
    """What the admin can do about it."""
    keeps_model: bool = True
    """Whether the draft model stays in memory."""


MAY_DRAFT = Permission(drafting=True)


class Presence:
    """Decides whether the worker may draft now. This one, the core's, always permits it.

    The service makes one for each part and asks all of them: the worker drafts if each permits it.
    """

    @property
    def permission(self) -> Permission:
        """What holds now. The service reads it on the event loop, at any time."""
        return MAY_DRAFT

    async def run(self) -> None:
        """Looks for changes until it is cancelled. The service starts it once; an error ends the worker."""

    def status(self) -> Mapping[str, object]:
        """Fields that it adds to the worker's status; JSON types."""
        return {}


class MakePresence(Protocol):
    """Makes what decides. The service calls it once, before it links with a gateway."""

    def __call__(self, settings: Settings, changed: Callable[[], None]) -> Presence:
        """`changed` is to be called on the event loop after each change of the permission."""


def always(settings: Settings, changed: Callable[[], None]) -> Presence:
    """A worker that may draft at any time."""
    return Presence()


@dataclass(frozen=True, eq=False)
class WorkerPart(Part):
    """A part of the worker; each field is empty if the part has nothing of that kind."""

    presence: MakePresence = always
    report: Callable[[Mapping[str, Any]], Lines] = no_lines
    """The lines of `edgespec status` about the fields that the part adds to a running worker's status.

    A worker that was started by `edgespec run --always` has none of them.
    """
