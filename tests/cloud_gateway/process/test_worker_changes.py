"""A change of a worker by command: what it does to the link and to the audit log of the gateway that runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from cloud_gateway.auth import KeyRing
from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.process.audit import AuditLog, entries
from cloud_gateway.process.control import Commands
from cloud_gateway.process.link_port import LinkPort
from edgespec.core.protocol.names import key_id
from tests.support.links import client, serving, worker_identity
from tests.support.until import until

ME = worker_identity()
ID = key_id(ME.key.public)


def commands(folder: Path, paired: PairedWorkers, port: object = None, audit: AuditLog | None = None) -> Commands:
    """Those of a gateway whose links, if it has a port, are served."""
    return Commands(paired, KeyRing(folder / "keys"), folder / "audit", cast("LinkPort | None", port), audit)


async def test_new_groups_count_for_the_link_at_once(tmp_path: Path) -> None:
    """Requests that the worker may no longer see leave it, and then it is offered those that it may see."""
    paired = PairedWorkers(tmp_path / "keys")
    paired.add(ME.key.public, "lab-7", groups=("physics",))
    async with serving(tmp_path, listed=paired) as gateway, client(gateway):
        await until(gateway.links.workers)
        changed = commands(tmp_path, paired, SimpleNamespace(links=gateway.links)).handlers()["regroup_worker"]
        gateway.seen.calls.clear()
        row = await changed(id="lab-7", values=[["chemistry"]])

        assert row["groups"] == ["chemistry"]
        (linked,) = gateway.links.workers()
        assert linked.groups == {"chemistry"}
        assert gateway.seen.calls == [("down", ID, "regrouped"), ("up", ID)]


async def test_only_the_end_of_a_quarantine_is_recorded_as_one(tmp_path: Path) -> None:
    paired = PairedWorkers(tmp_path / "keys")
    paired.add(ME.key.public, "lab-7")
    paired.quarantine("lab-7", "its drafts were never right")
    audit = AuditLog(tmp_path / "audit", 100_000, 2)
    handlers = commands(tmp_path, paired, audit=audit).handlers()
    for group in ("physics", "chemistry"):
        await handlers["regroup_worker"](id="lab-7", values=[[group]])
    await handlers["release_worker"](id="lab-7")
    audit.close()

    (entry,) = entries(tmp_path / "audit")
    assert (entry.event, entry.worker, entry.worker_name) == ("lifted", ID, "lab-7")
