"""All that decides whether the worker may draft now: what each part says, taken together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from edgespec.worker.part import MAY_DRAFT, Permission, Presence


class Presences:
    """The worker drafts if each of these permits it."""

    def __init__(self, each: Sequence[Presence]) -> None:
        self.each = each

    @property
    def permission(self) -> Permission:
        """The first that forbids drafting, if there is one."""
        for presence in self.each:
            permission = presence.permission
            if not permission.drafting:
                return permission
        return MAY_DRAFT

    async def run(self) -> None:
        """Runs until it is cancelled, also if nothing is watched. Raises what one of them raises."""
        async with asyncio.TaskGroup() as group:
            for presence in self.each:
                group.create_task(presence.run())
            await asyncio.Event().wait()

    def status(self) -> dict[str, object]:
        """Fields of the worker's status: `aside` is null, or why it stepped aside and what its admin can do."""
        permission = self.permission
        fields: dict[str, object] = {"aside": None}
        if not permission.drafting:
            fields["aside"] = {"because": permission.because, "do": permission.remedy}

        for presence in self.each:
            fields.update(presence.status())

        return fields
