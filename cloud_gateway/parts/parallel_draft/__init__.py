"""The gateway's own worker: a draft process on other cores, or another device, of the same machine.

With `local_draft.mode = "async-local"` draft and target run at the same time (AMUSD, section III): that process drafts
on while the target verifies, and a commit shows it where to roll back. It is an ordinary worker over the loopback
interface: its tree, its policies, its accounting and its failures are those of any worker. It may read every prompt,
since none leaves the machine (docs/gateway.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cloud_gateway.part import Foundation, GatewayPart, Running
from cloud_gateway.process.config import DaemonSection, LocalDraftSection
from edgespec.core.pairing.groups import OWN_GROUP
from edgespec.shared.fields import Cores
from edgespec.shared.part import Settings
from edgespec.shared.settings import Section

if TYPE_CHECKING:
    from cloud_gateway.parts.parallel_draft.process import OwnWorker
    from edgespec.shared.address import Address

BESIDE = "async-local"
"""The value of `local_draft.mode` with which there is such a worker."""


class ProcessSection(Section, frozen=True, kw_only=True):
    """[local_draft]: whether the draft has a process of its own, and on which cores."""

    mode: Literal["in-turn", "async-local"] = "in-turn"
    cpu: Cores = ()


def draft_conflicts(settings: Settings) -> Iterator[tuple[str, str]]:
    """The process needs a model file, and cores that the target does not use."""
    model = settings.of(LocalDraftSection).model
    process = settings.of(ProcessSection)
    if process.mode != BESIDE:
        if process.cpu:
            yield "local_draft.cpu", 'empty where `local_draft.mode` is "in-turn": that draft runs on `daemon.cpu`'
        return

    if not model:
        yield "local_draft.model", 'a model where `local_draft.mode` is "async-local"'
    for part in settings.parts:
        if isinstance(part, GatewayPart) and model in part.drafts:
            yield "local_draft.mode", f'"in-turn" if `local_draft.model` is "{model}": it runs beside the target'
    shared = sorted(set(process.cpu) & set(settings.of(DaemonSection).cpu))
    if shared:
        yield "local_draft.cpu", f"other cores than `daemon.cpu`, which has {shared} too"


class Beside(Running):
    """Runs the worker once the link port is open."""

    def __init__(self, worker: OwnWorker) -> None:
        self._worker = worker

    def link_opened(self, address: Address) -> frozenset[str]:
        self._worker.start(address)
        return frozenset({OWN_GROUP})

    async def close(self) -> None:
        await self._worker.close()


def paired(gateway: Foundation) -> Running:
    """Pairs the worker, if there is one."""
    process = gateway.settings.of(ProcessSection)
    if process.mode != BESIDE:
        return Running()

    from cloud_gateway.parts.parallel_draft.process import LikeLocal, OwnWorker

    draft = gateway.settings.of(LocalDraftSection)
    drafting = LikeLocal(draft.model, draft.threads, draft.n_gpu_layers, process.cpu)
    port = gateway.link
    folder = gateway.state_dir / "own-worker"
    worker = OwnWorker(drafting, folder, gateway.signing_key, port.name, port.spki_hash)
    worker.pair(port.paired)
    return Beside(worker)


PART = GatewayPart(
    "parallel_draft",
    {"local_draft": ProcessSection},
    check=draft_conflicts,
    start=paired,
    own_engine_only=("local_draft.mode",),
    example=Path(__file__).parent / "gateway.toml",
)
