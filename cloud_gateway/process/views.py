"""JSON rows of API keys and workers for the commands and the control socket; times: Unix seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from cloud_gateway.auth import Key
from cloud_gateway.core.requests.router import cost_s
from edgespec.core.protocol.names import key_id

if TYPE_CHECKING:
    from cloud_gateway.core.requests.merit import Merit, Record
    from cloud_gateway.links.paired import PairedWorker
    from cloud_gateway.links.registry import WorkerInfo

CHANGED: Mapping[str, str] = {
    "revoke": "Worker {name} ({id}) is revoked and its link ended; pairing it again undoes that.",
    "release": "Worker {name} ({id}) is released from quarantine; it is linked within two minutes if it runs.",
    "expire": "The pairing of worker {name} ({id}) {until}.",
    "regroup": "Worker {name} ({id}) is now in: {listed}.",
}
"""Methods of `PairedWorkers` that change a worker, and the sentence about the row that results."""


def key_row(key: Key, used: int | None = None) -> dict[str, object]:
    """`used`: when the running gateway last accepted it."""
    return {
        "id": key.id,
        "name": key.name,
        "offload": key.offload,
        "groups": list(key.groups) if key.offload else [],
        "cache_group": key.cache_group,
        "operator": key.operator,
        "created": key.created,
        "revoked": key.revoked,
        "last_used": used,
    }


def worker_row(worker: PairedWorker, link: WorkerInfo | None, record: Record | None = None) -> dict[str, object]:
    """A paired worker, with figures of its link while it is linked; `record`: what it brought since the start."""
    return {
        "id": key_id(worker.key),
        "name": worker.name,
        "standing": worker.standing,
        "groups": list(worker.groups),
        "paired_at": worker.paired_at,
        "revoked_at": worker.revoked_at,
        "expires_at": worker.expires_at,
        "rotated_from": key_id(worker.rotated_from) if worker.rotated_from else None,
        "quarantined_at": worker.quarantined_at,
        "quarantine": worker.quarantine or None,
        "last_seen": worker.last_seen,
        "linked": link is not None,
        "paused": _paused(link) if link else None,
        "rtt_ms": round(link.rtt_s * 1000, 2) if link else None,
        "step_ms": round(link.step_s * 1000, 2) if link else None,
        "requests": record.requests if record else None,
        "frames": record.frames if record else None,
        "accepted": record.accepted if record else None,
        "rank": None,
        "why": record.why if record else None,
    }


def worker_rows(
    paired: Iterable[PairedWorker], linked: Mapping[str, WorkerInfo], merit: Merit
) -> list[dict[str, object]]:
    """All of them; `rank` 1 is the linked one that an idle gateway gives the next request to."""
    views = [link.view() for link in linked.values() if not link.paused]
    ranks = {one.id: n for n, one in enumerate(sorted(views, key=lambda one: cost_s(one, 0, merit)), 1)}
    rows = [worker_row(one, linked.get(key_id(one.key)), merit.of(one.name)) for one in paired]
    return [row | {"rank": ranks.get(str(row["id"]))} for row in rows]


def _paused(link: WorkerInfo) -> str | None:
    """Why a linked worker gets no requests."""
    return "on probation, its links kept ending" if link.probation else link.paused_because
