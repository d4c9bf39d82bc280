"""A worker's service with a real (tiny) model, linked to a gateway's links."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from edgespec.core.drafting.settings import MAX_STEP_LEAVES
from edgespec.core.protocol.messages import Open, Sampling
from edgespec.llamacpp.drafter import Drafter
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateways
from edgespec.worker import start
from edgespec.worker.config import DaemonSection, WorkerSettings
from edgespec.worker.part import WorkerPart
from edgespec.worker.service import Service
from tests.support.links import GATEWAY_KEY, MODEL, TOKENIZER, VOCAB, GatewayUnderTest, serving
from tests.support.links import WorkerIdentity as Identity
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.until import until as until_within

PROMPT = [5, 6, 7, 8]
until = partial(until_within, timeout_s=40)
"""A worker that was cut off waits up to a second before it comes back, and a busy machine takes its time."""


@dataclass
class Running:
    """A gateway's links, and a worker's service that is linked to them."""

    gateway: GatewayUnderTest
    service: Service
    task: asyncio.Task[None]
    loaded_at_nice: list[int] = field(default_factory=list)
    """Nice value of each thread that loaded the model."""

    def open(self, number: int, sampling: Sampling | None = None, prompt: Sequence[int] = PROMPT) -> None:
        body = Open(number, 1, len(prompt), list(prompt), sampling or Sampling())
        (worker,) = self.gateway.links.workers()
        self.gateway.links.send(worker.id, [body])

    @property
    def paused_because(self) -> str | None:
        """The pause as the gateway has it."""
        (worker,) = self.gateway.links.workers()
        return worker.paused_because

    async def drafts(self, number: int) -> None:
        """The worker is linked, takes this request and sends a tree for it."""
        await until(lambda: self.gateway.links.workers() or self.task.done())
        assert not self.task.done(), self.task.exception()
        self.open(number)
        await until(lambda: any(tree.request == number for _, tree in self.gateway.seen.of("tree")))


@asynccontextmanager
async def serving_worker(
    tmp_path: Path,
    parts: Sequence[WorkerPart] = (),
    priority: Literal["idle", "normal"] = "normal",
    branching: int = 4,
) -> AsyncIterator[Running]:
    """A linked worker with these parts."""
    store = KeyStore(tmp_path / "state")
    async with serving(tmp_path, paired=[listed(store)], branching=branching) as gateway:
        PairedGateways(store.folder).add(GATEWAY_KEY.public, gateway.pin.spki_hash, "gw", str(gateway.address), 1)
        async with service_of(tmp_path, parts, priority) as (service, task, nices):
            yield Running(gateway, service, task, nices)


def listed(store: KeyStore) -> Identity:
    """The worker with these keys, as a gateway lists it."""
    return Identity(store.identity(), "w", TOKENIZER, MODEL, VOCAB, 4)


@asynccontextmanager
async def service_of(
    tmp_path: Path,
    parts: Sequence[WorkerPart] = (),
    priority: Literal["idle", "normal"] = "normal",
) -> AsyncIterator[tuple[Service, asyncio.Task[None], list[int]]]:
    """The service of the worker whose state is in `tmp_path / "state"`, which is paired; its task and loads."""
    model = make_tiny_gguf(tmp_path / "tiny.gguf")
    nices: list[int] = []

    def load(settings: WorkerSettings) -> Drafter:
        nices.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        drafter = Drafter(model, context=1024, sequences=MAX_STEP_LEAVES)
        drafter.tokenizer_digest = TOKENIZER
        return drafter

    settings = WorkerSettings(
        daemon=DaemonSection(name="w", state_dir=str(tmp_path / "state"), priority=priority),
    )
    service = Service(settings, load, parts)
    task = asyncio.ensure_future(start.run(settings, make=lambda *_: service))
    try:
        yield service, task, nices
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        service.daemon.stop()
