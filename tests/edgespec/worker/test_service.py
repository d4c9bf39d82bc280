"""The worker as a service, with a real (tiny) model and a real link: a failing request ends only itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from edgespec.core.drafting.settings import MAX_STEP_LEAVES
from edgespec.core.errors import ModelError
from edgespec.core.protocol.messages import Open, Sampling
from edgespec.llamacpp.context import Row
from edgespec.llamacpp.drafter import Drafter
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateways
from edgespec.worker.config import DaemonSection, GatewaySection, WorkerSettings
from edgespec.worker.daemon import FAILED
from edgespec.worker.service import Service
from tests.support.links import GATEWAY_KEY, MODEL, TOKENIZER, VOCAB, GatewayUnderTest, serving
from tests.support.links import WorkerIdentity as Identity
from tests.support.links import until as until_within
from tests.support.tiny_gguf import make_tiny_gguf

PROMPT, POISON = [5, 6, 7, 8], 61
until = partial(until_within, timeout_s=40)
"""A worker that was cut off waits up to a second before it comes back, and a busy machine takes its time."""


@dataclass
class Running:
    """A gateway's links, and a worker's service that is linked to them."""

    gateway: GatewayUnderTest
    service: Service
    task: asyncio.Task[None]

    def open(self, number: int, sampling: Sampling | None = None, prompt: Sequence[int] = PROMPT) -> None:
        body = Open(number, 1, len(prompt), list(prompt), sampling or Sampling())
        (worker,) = self.gateway.links.workers()
        self.gateway.links.send(worker.id, body)

    async def drafts(self, number: int) -> None:
        """The worker is linked, takes this request and sends a tree for it."""
        await until(lambda: self.gateway.links.workers() or self.task.done())
        assert not self.task.done(), self.task.exception()
        self.open(number)
        await until(lambda: any(tree.request == number for _, tree in self.gateway.seen.of("tree")))


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    model = make_tiny_gguf(tmp_path / "tiny.gguf")
    state = tmp_path / "state"
    store = KeyStore(state)
    key = store.identity()

    def load(settings: WorkerSettings) -> Drafter:
        drafter = Drafter(model, context=1024, sequences=MAX_STEP_LEAVES)
        drafter.tokenizer_digest = TOKENIZER
        return drafter

    async with serving(tmp_path, paired=[Identity(key, "w", TOKENIZER, MODEL, VOCAB, 4)]) as gateway:
        PairedGateways(store.folder).add(GATEWAY_KEY.public, gateway.pin.spki_hash, "gw", str(gateway.address), 1)
        settings = WorkerSettings(
            gateway=GatewaySection(discover=False), daemon=DaemonSection(name="w", state_dir=str(state))
        )
        service = Service(settings, load)
        task = asyncio.ensure_future(service.run())
        yield Running(gateway, service, task)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        service.daemon.stop()


@pytest.mark.parametrize("penalty", [1e-307, 1e-310])
async def test_a_penalty_that_overflows_costs_a_link_and_not_the_service(running: Running, penalty: float) -> None:
    await running.drafts(1)
    for number, temperature in ((2, 1.0), (3, 0.0)):
        await until(running.gateway.links.workers)
        running.open(number, Sampling(temperature, repetition_penalty=penalty, seed=1))
        await until(lambda: running.task.done() or not running.gateway.links.workers())  # refused as malformed
        await running.drafts(10 + number)


async def test_a_failing_decode_declines_its_request_and_not_the_service(running: Running) -> None:
    context = running.service.daemon.drafter._llama
    decode = context.decode

    def poisoned(rows: Sequence[Row]) -> bool:
        if any(row.token == POISON for row in rows):
            raise ModelError("llama.cpp could not evaluate a batch (code -3)")
        return decode(rows)

    context.decode = poisoned  # type: ignore[method-assign]
    await running.drafts(1)
    for number in range(2, 8):
        running.open(number, prompt=[*PROMPT, POISON])
    await until(lambda: len(running.gateway.seen.of("decline")) == 6 or running.task.done())
    assert {why for _, _, why in running.gateway.seen.of("decline")} == {FAILED}
    await running.drafts(9)
