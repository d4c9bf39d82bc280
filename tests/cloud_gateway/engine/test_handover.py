"""A round's commit is written before the models compute again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.engine import loop as engine_loop
from cloud_gateway.models.target_model import Work
from edgespec.core.protocol.messages import Commit
from tests.support.engines import complete, engines
from tools.doubles.engines import TableTarget
from tools.doubles.model import Rows
from tools.doubles.workers import OneWorker

TOKENS = 20


class Counting(TableTarget):
    """Notes at the begin of each pass how many commits were written; the event loop wakes up late."""

    def __init__(self, worker: OneWorker) -> None:
        super().__init__(pass_s=0.0)
        self.worker = worker
        self.commits = list[int]()

    def verify(self, batch: Sequence[Work]) -> list[Rows]:
        self.commits.append(sum(isinstance(body, Commit) for body in self.worker.seen))
        return super().verify(batch)


async def busy(stop: asyncio.Event) -> None:
    """Keeps the event loop from running what the engine hands it at once."""
    while not stop.is_set():
        time.sleep(0.002)  # noqa: ASYNC251  that is the point
        await asyncio.sleep(0)


@pytest.mark.parametrize(("wait_s", "least", "most"), [(10.0, TOKENS, TOKENS), (0.0, 0, TOKENS - 1)])
async def test_the_models_wait_for_the_commit_to_be_written(
    monkeypatch: pytest.MonkeyPatch, wait_s: float, least: int, most: int
) -> None:
    monkeypatch.setattr(engine_loop, "HANDOVER_S", wait_s)
    worker = OneWorker()
    stop = asyncio.Event()
    target = Counting(worker)
    other = asyncio.ensure_future(busy(stop))
    with engines() as make:
        await complete(
            make(worker, None, target, policy="wanspec", k=0), GenerationRequest([1, 2, 3], TOKENS, ignore_eos=True)
        )
    stop.set()
    await other
    in_time = sum(written == passes for passes, written in enumerate(target.commits))
    assert least <= in_time <= most, target.commits
