"""The handlers of the running gateway's control socket, which the commands call."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

import msgspec

from cloud_gateway.api import Api
from cloud_gateway.auth import KeyRing
from cloud_gateway.core.requests.merit import Merit
from cloud_gateway.engine.exchange import WorkerGone, WorkerReady
from cloud_gateway.engine.loop import Engine
from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.links.server import Links
from cloud_gateway.process.audit import AuditLog, entries
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import Models
from cloud_gateway.process.views import key_row, worker_row, worker_rows
from edgespec import __version__
from edgespec.core.errors import PairingError
from edgespec.core.protocol.names import key_id
from edgespec.shared.advertise import Advertiser
from edgespec.shared.control import Handler
from edgespec.shared.pairing_listener import PairingListener
from edgespec.shared.starting import Starting

AUDIT_BATCH = 200
"""Entries of one message: about 70 KB, so that other commands do not wait long."""


class Running(Protocol):
    """The part that the commands use of the gateway process; the last four are None until the models are loaded."""

    settings: GatewaySettings
    starting: Starting
    api: Api
    paired: PairedWorkers
    keys: KeyRing
    desk: PairingListener
    audit: AuditLog | None
    audit_folder: Path
    models: Models | None
    engine: Engine | None
    links: Links | None
    advertiser: Advertiser | None

    def addresses(self) -> dict[str, str]:
        """The listeners' URLs."""

    def worker_address(self) -> str:
        """The address for workers."""


class Commands:
    """The handlers. Each returns JSON types and runs on the event loop; files are written in a thread."""

    def __init__(self, gateway: Running) -> None:
        self._gateway = gateway
        self._began = time.monotonic()

    def handlers(self) -> Mapping[str, Handler]:
        """The handlers by the names that cloud_gateway/process/commands.py uses."""
        return {
            "status": self.status,
            "pair": self.pair,
            "workers": self.workers,
            "revoke_worker": self.revoke_worker,
            "release_worker": self.release_worker,
            "expire_worker": self.expire_worker,
            "group_worker": self.group_worker,
            "create_key": self.create_key,
            "keys": self.keys,
            "revoke_key": self.revoke_key,
            "audit": self.audit,
        }

    async def status(self) -> dict[str, object]:
        gateway = self._gateway
        found: dict[str, object] = {
            "version": __version__,
            "pid": os.getpid(),
            "state": gateway.api.state,
            "uptime_s": round(time.monotonic() - self._began),
            **gateway.addresses(),
        }
        if gateway.models is None or gateway.engine is None or gateway.links is None:
            return found | gateway.starting.status()
        engine, stats = gateway.engine, gateway.engine.stats
        linked = gateway.links.workers()
        return found | {
            "model": gateway.models.served.id,
            "policy": gateway.settings.policy.name,
            "workers_linked": len(linked),
            "workers_paused": sum(worker.paused for worker in linked),
            "workers_quarantined": gateway.paired.quarantined(),
            "requests_active": engine.active,
            "requests_queued": engine.queued,
            "requests": stats.requests,
            "tokens": stats.tokens,
            "rounds": stats.rounds,
            "drafted": dict(stats.drafted),
            "accepted": dict(stats.accepted),
            "local_draft_passes": stats.local_passes,
            "frames": dict(engine.stats.frames.counts),
            "refused": dict(gateway.links.rejected),
        }

    async def pair(self, groups: Sequence[str] = ()) -> AsyncIterator[dict[str, object]]:
        """The pairing desk's events; each code is sent with the address for the worker."""
        gateway = self._gateway
        if gateway.links is None:
            raise PairingError("The gateway is still loading its models; try again shortly.")
        async with aclosing(gateway.desk.pair(groups)) as events:  # type: ignore[type-var]
            async for event in events:
                if "code" in event:
                    event |= {
                        "address": gateway.worker_address(),
                        "mdns": gateway.advertiser is not None and gateway.advertiser.works,
                    }
                yield event

    async def workers(self) -> dict[str, object]:
        """All paired workers, with figures of the linked ones."""
        return {"workers": self.worker_rows()}

    def worker_rows(self) -> list[dict[str, object]]:
        gateway = self._gateway
        linked = {w.id: w for w in gateway.links.workers()} if gateway.links else {}
        merit = gateway.engine.offloading.merit if gateway.engine else Merit()
        return worker_rows(gateway.paired.all(), linked, merit)

    async def revoke_worker(self, id: str) -> dict[str, object]:  # noqa: A002 - the parameter's name on the wire
        """Revokes on disk, then ends the link."""
        worker = await asyncio.to_thread(self._gateway.paired.revoke, id)
        if self._gateway.links is not None:
            self._gateway.links.revoke(worker.key)
        return worker_row(worker, None)

    async def release_worker(self, id: str) -> dict[str, object]:  # noqa: A002
        """Ends a quarantine; the worker is linked at its next attempt."""
        gateway = self._gateway
        worker = await asyncio.to_thread(gateway.paired.release, id)
        if gateway.audit is not None:
            gateway.audit.worker("lifted", key_id(worker.key), worker.name, "")
        return worker_row(worker, None)

    async def expire_worker(self, id: str, at: float | None) -> dict[str, object]:  # noqa: A002
        """Sets the date from which a worker is refused; a link ends within a second of it."""
        return worker_row(await asyncio.to_thread(self._gateway.paired.expire, id, at), None)

    async def group_worker(self, id: str, groups: list[str]) -> dict[str, object]:  # noqa: A002
        """Puts a worker into other groups; requests that it may no longer see leave it at once."""
        gateway = self._gateway
        worker = await asyncio.to_thread(gateway.paired.regroup, id, groups)
        link = gateway.links.regroup(worker.key, frozenset(worker.groups)) if gateway.links else None
        if link is not None and gateway.engine is not None:
            gateway.engine.post(WorkerGone(link.id, "regrouped"))
            if not link.paused:
                gateway.engine.post(WorkerReady(link.id))
        return worker_row(worker, link)

    async def create_key(
        self, name: str, offload: bool, cache_group: str = "", groups: Sequence[str] = (), operator: bool = False
    ) -> dict[str, object]:
        """Makes a key. Only this reply holds a secret; other users cannot open the socket."""
        create = self._gateway.keys.create
        key, secret = await asyncio.to_thread(
            create, name, offload=offload, groups=groups, cache_group=cache_group, operator=operator
        )
        return {**key_row(key), "key": secret}

    async def keys(self) -> dict[str, object]:
        ring = self._gateway.keys
        return {"keys": [key_row(key, ring.used.get(key.id)) for key in ring.all()]}

    async def revoke_key(self, id: str) -> dict[str, object]:  # noqa: A002
        return key_row(await asyncio.to_thread(self._gateway.keys.revoke, id))

    async def audit(self, since: float = 0.0) -> AsyncIterator[dict[str, object]]:
        """The audit log in batches, oldest entries first."""
        found = entries(self._gateway.audit_folder, since)
        while batch := await asyncio.to_thread(lambda: list(itertools.islice(found, AUDIT_BATCH))):
            yield {"entries": msgspec.to_builtins(batch)}
