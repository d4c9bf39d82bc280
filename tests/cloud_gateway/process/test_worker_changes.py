"""A change of a worker by command: its effect on the link, and who is called at the end of a quarantine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from cloud_gateway.auth import KeyRing
from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.process.control import Commands, nobody_listens
from cloud_gateway.process.link_port import LinkPort
from edgespec.core.protocol.names import key_id
from tests.support.links import client, serving, worker_identity
from tests.support.until import until

ME = worker_identity()
ID = key_id(ME.key.public)


def commands(folder: Path, paired: PairedWorkers, port: object, lifted: Callable[[str, str], None]) -> Commands:
    """Those of a gateway whose links, if it has a port, are served."""
    return Commands(paired, KeyRing(folder / "keys"), cast("LinkPort | None", port), lifted)


async def test_new_groups_count_for_the_link_at_once(tmp_path: Path) -> None:
    """Requests that the worker may no longer see leave it, and then it is offered those that it may see."""
    paired = PairedWorkers(tmp_path / "keys")
    paired.add(ME.key.public, "lab-7", groups=("physics",))
    async with serving(tmp_path, listed=paired) as gateway, client(gateway):
        await until(gateway.links.workers)
        port = SimpleNamespace(links=gateway.links)
        changed = commands(tmp_path, paired, port, nobody_listens).handlers()["regroup_worker"]
        gateway.seen.calls.clear()
        row = await changed(id="lab-7", values=[["chemistry"]])

        assert row["groups"] == ["chemistry"]
        (linked,) = gateway.links.workers()
        assert linked.groups == {"chemistry"}
        assert gateway.seen.calls == [("down", ID, "regrouped"), ("up", ID)]


async def test_only_the_end_of_a_quarantine_is_reported_as_one(tmp_path: Path) -> None:
    paired = PairedWorkers(tmp_path / "keys")
    paired.add(ME.key.public, "lab-7")
    paired.quarantine("lab-7", "its drafts were never right")
    lifted: list[tuple[str, str]] = []
    handlers = commands(tmp_path, paired, None, lambda *worker: lifted.append(worker)).handlers()
    for group in ("physics", "chemistry"):
        await handlers["regroup_worker"](id="lab-7", values=[[group]])
    await handlers["release_worker"](id="lab-7")
    assert lifted == [(ID, "lab-7")]
