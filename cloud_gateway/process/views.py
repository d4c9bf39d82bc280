"""What the commands show: JSON rows of API keys and workers, with times in Unix seconds, and the text of the status."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from cloud_gateway.auth import Key
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.worth import verdict

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cloud_gateway.core.requests.router import Record
    from cloud_gateway.links.link import WorkerInfo
    from cloud_gateway.links.paired import PairedWorker
    from cloud_gateway.part import GatewayPart


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
        "learn": key.learn,
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
        "books": asdict(record.figures) if record else None,
        "helps": verdict(record.figures) if record else None,
    }


def _paused(link: WorkerInfo) -> str | None:
    """Why a linked worker gets no requests."""
    if link.probation:
        return link.probation_because
    return link.paused_because


NAME = 11
"""Width of the first column."""
UNLINKED = "No worker is linked: `cloud-gateway workers list` shows why, `cloud-gateway pair` adds one."


def text(status: Mapping[str, Any], parts: Sequence[GatewayPart] = ()) -> str:
    """The state of a running gateway, or of one that starts: a name and a sentence a line."""
    return "\n".join(f"{name:{NAME}} {value}" for name, value in _lines(status, parts))


def show_live(
    read: Callable[[], tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]],
    parts: Sequence[GatewayPart] = (),
    period_s: float = 1.0,
) -> None:
    """The state, its rates and the workers, in place, until `read` raises, as it does when the gateway ends."""
    from rich.live import Live

    before = None
    began = time.monotonic()
    with Live(auto_refresh=False, screen=False) as shown:
        while True:
            (status, workers), now = read(), time.monotonic()
            shown.update(screen(before, status, now - began, workers, parts), refresh=True)
            before = status
            began = now
            time.sleep(period_s)


def screen(
    before: Mapping[str, Any] | None,
    status: Mapping[str, Any],
    seconds: float,
    workers: Sequence[Mapping[str, Any]],
    parts: Sequence[GatewayPart] = (),
) -> RenderableType:
    """`status` with what happened in the `seconds` since `before`, and a table of the linked workers."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    linked = [row for row in workers if row["linked"]]
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("worker", "state", "round trip", "step", "requests", "frames", "accepted"):
        table.add_column(name)
    for row in linked:
        times = (f"{row[name]:.1f} ms" for name in ("rtt_ms", "step_ms"))
        counts = (str(row[name] or 0) for name in ("requests", "frames", "accepted"))
        table.add_row(Text(row["name"]), Text(row["paused"] or "ready"), *times, *counts)
    if before and "rounds" in before.keys() & status.keys():
        rates = _rates(before, status, seconds)
    else:
        rates = ""
    return Group(
        Text(text(status, parts)), Text(f"{'now':{NAME}} {rates or '-'}\n"), table if linked else Text(UNLINKED)
    )


def _rates(before: Mapping[str, Any], status: Mapping[str, Any], seconds: float) -> str:
    tokens, passes, local = (status[name] - before[name] for name in ("tokens", "rounds", "local_draft_passes"))
    drafted, accepted = (sum(status[name].values()) - sum(before[name].values()) for name in ("drafted", "accepted"))
    if drafted:
        share = f", {accepted / drafted:.0%} of {drafted} candidates accepted"
    else:
        share = ""
    a_pass = f", {tokens / passes:.2f} a pass" if passes else ""
    return f"{tokens / seconds:.1f} tokens/s{a_pass}, {local / seconds:.1f} local draft passes/s{share}"


def _lines(status: Mapping[str, Any], parts: Sequence[GatewayPart]) -> Iterator[tuple[str, str]]:
    up = f"up {timedelta(seconds=status['uptime_s'])} (process {status['pid']}, cloud-gateway {status['version']})"
    if "doing" in status:
        yield "state", f"starting: {status['doing']} (for {status['doing_s']:.0f} s), {up}"
        return
    if status["state"] == "link":
        yield "state", f"linking workers to other engines, {up}"
        yield "link port", status["link"]
        yield "engines", f"{status['engines']} at {status['board']}"
        yield "requests", f"{status['streams']} open to workers, {status['streams_helped']} of them with one"
        yield "candidates", f"{status['accepted']} of {status['drafted']} were accepted"
        yield "workers", ", ".join(f"{status[f'workers_{kind}']} {kind}" for kind in ("linked", "paused"))
        yield from (("problem", problem) for problem in status.get("problems", ()))
        return

    yield "state", f"{status['state']} {status['model']}, {up}"
    yield "API", f"{status['api']}/v1"
    yield "link port", status["link"]
    for part in parts:
        yield from part.report(status)
    yield "policy", status["policy"]
    yield "workers", ", ".join(f"{status[f'workers_{kind}']} {kind}" for kind in ("linked", "paused", "quarantined"))
    yield from (("problem", text) for text in status.get("problems", ()))
    asked = f"{status['requests_active']} active, {status['requests_queued']} queued"
    yield "requests", f"{asked}, {status['requests']} since the start"
    rounds = status["rounds"]
    if rounds:
        a_pass = f" ({status['tokens'] / rounds:.2f} a pass)"
    else:
        a_pass = ""
    yield "tokens", f"{status['tokens']} in {rounds} passes of the target{a_pass}"
    for source, drafted in status["drafted"].items():
        accepted = status["accepted"].get(source, 0)
        share = f" ({accepted / drafted:.0%})" if drafted else ""
        yield "candidates", f"{accepted} of {drafted} by {source} were accepted{share}"
    for name, sentence in status.get("helps", {}).items():
        yield "help", f"{name} {sentence}"
    yield "local draft", f"{status['local_draft_passes']} passes"
    for name in ("frames", "refused"):
        yield name, ", ".join(f"{count} {kind}" for kind, count in status[name].items()) or "none"
