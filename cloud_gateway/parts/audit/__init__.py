"""The audit log: which worker was given which request, and how that ended; `cloud-gateway audit` shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from cloud_gateway.part import Foundation, GatewayPart, GatewayVerb, PromptBook, Running, Serving, WorkerChange
from cloud_gateway.parts.audit import verb
from edgespec.shared.settings import Removed, Section

if TYPE_CHECKING:
    from cloud_gateway.engine.exchange import Recording
    from cloud_gateway.parts.audit.book import AuditLog
    from edgespec.shared.control import Handler

FILE_BYTES = 4 * 2**20
"""About 11,000 entries; a larger file would take longer to search and to drop."""
REMOVED = {
    "audit.enabled": Removed("`audit.keep = 0` keeps no audit log.", (True,)),
    "audit.max_kb": Removed("a file has 4 MiB; `audit.keep` says how many are kept.", (4096,)),
}


class AuditSection(Section, frozen=True):
    """[audit]: the record of which worker was given which request."""

    keep: Annotated[int, Meta(ge=0, le=100)] = 4


class Auditing(Running):
    """Writes the log, and reads it for the command."""

    def __init__(self, folder: Path, log: AuditLog | None) -> None:
        """`log`: None if nothing is recorded, but what was recorded before can be read."""
        self._folder = folder
        self._log = log

    def handlers(self) -> Mapping[str, Handler]:
        from cloud_gateway.parts.audit.book import batches

        return {"audit": lambda since=0.0: batches(self._folder, since)}

    def recording(self, serving: Serving) -> Recording | None:
        from cloud_gateway.parts.audit.listener import Audited

        if self._log is None:
            return None
        return Audited(self._log)

    def book(self) -> PromptBook | None:
        return self._log

    def worker_changed(self, change: WorkerChange, worker: str, name: str, why: str) -> None:
        if self._log is not None:
            self._log.worker(change, worker, name, why)

    async def close(self) -> None:
        """Writes the entries that wait."""
        if self._log is not None:
            await asyncio.to_thread(self._log.close)


def start_audit(gateway: Foundation) -> Running:
    """Raises KeyStoreError for the folder."""
    from cloud_gateway.parts.audit.book import AuditLog

    folder = gateway.state_dir / verb.FOLDER
    keep = gateway.settings.of(AuditSection).keep
    return Auditing(folder, AuditLog(folder, FILE_BYTES, keep) if keep else None)


PART = GatewayPart(
    "audit",
    {"audit": AuditSection},
    verbs=(GatewayVerb("audit", verb.show, "show which workers were given which requests", verb.add_arguments),),
    removed=REMOVED,
    example=Path(__file__).with_name("gateway.toml"),
    start=start_audit,
)
