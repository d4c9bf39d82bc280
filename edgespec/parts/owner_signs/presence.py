"""The owner's decision as the worker gets it: whether it may draft now, and a line in the log at each change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from edgespec.parts.owner_signs.policy import Verdict
from edgespec.parts.owner_signs.settings import OwnerSection, owner_policy
from edgespec.parts.owner_signs.sources import Source
from edgespec.parts.owner_signs.watch import SignWatch
from edgespec.worker.part import MAY_DRAFT, Permission, Presence

log = logging.getLogger("edgespec.service")

OWNER_FIRST = "its owner comes first"
"""What the gateway gets as the reason: what the owner does is nobody's business there."""
REMEDY = "wait until the owner is away, or change `[owner]` in worker.toml (docs/worker.md)"


class OwnerPresence(Presence):
    """Steps aside for the owner, as `[owner]` and the signs on this machine say."""

    def __init__(self, section: OwnerSection, sources: Sequence[Source], changed: Callable[[], None]) -> None:
        """`changed` is called on the event loop, after each change of the permission."""
        self.watch = SignWatch(owner_policy(section), sources, self._on_verdict)
        self._changed = changed

    @property
    def permission(self) -> Permission:
        """The permission of the latest verdict; the worker may draft before the first one."""
        verdict = self.watch.verdict
        if verdict is None or verdict.drafting:
            return MAY_DRAFT
        return Permission(False, OWNER_FIRST, verdict.because or "", REMEDY, verdict.model)

    async def run(self) -> None:
        """Reads the signs until it is cancelled."""
        await self.watch.run()

    def status(self) -> Mapping[str, object]:
        """The field `owner` of the worker's status."""
        return {"owner": self.watch.status()}

    def _on_verdict(self, verdict: Verdict) -> None:
        if verdict.drafting:
            log.info("drafting (`owner.mode` is %s)", self.watch.policy.mode)
        elif verdict.model:
            log.info("not drafting: %s (`[owner]`, docs/worker.md)", verdict.because)
        else:
            log.info("not drafting: %s (`[owner]`, docs/worker.md); the draft model is freed", verdict.because)
        self._changed()
