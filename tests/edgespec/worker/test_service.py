"""The worker as a service, with a real (tiny) model and a real link: a failing request ends only itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edgespec.core.errors import ModelError
from edgespec.core.protocol.messages import Sampling
from edgespec.shared.settings import override
from edgespec.worker.config import WorkerSettings
from edgespec.worker.service import load_drafter
from tests.support.services import Running, serving_worker, until
from tests.support.tiny_gguf import make_tiny_gguf


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving_worker(tmp_path) as worker:
        yield worker


@pytest.mark.claim("a-penalty-that-overflows-costs-a-link-and-not-the-service")
@pytest.mark.parametrize("penalty", [1e-307, 1e-310])
async def test_a_penalty_that_overflows_costs_a_link_and_not_the_service(running: Running, penalty: float) -> None:
    await running.drafts(1)
    for number, temperature in ((2, 1.0), (3, 0.0)):
        running.open(number, Sampling(temperature, repetition_penalty=penalty, seed=1))
        await until(lambda n=number: running.task.done() or len(running.gateway.seen.of("down")) == n - 1)  # malformed
        await running.drafts(10 + number)


async def test_no_node_gets_more_children_than_the_gateway_takes(tmp_path: Path) -> None:
    async with serving_worker(tmp_path, branching=2) as worker:
        await worker.drafts(1)
        families = Counter(parent for _, tree in worker.gateway.seen.of("tree") for parent in tree.parents)
        assert max(families.values()) == 2


def test_a_gpu_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    settings = override(WorkerSettings(), "draft.model", str(make_tiny_gguf(tmp_path / "tiny.gguf")))
    with pytest.raises(ModelError, match="`n_gpu_layers` = 9 asks for a GPU"):
        load_drafter(override(settings, "draft.n_gpu_layers", "9"))
