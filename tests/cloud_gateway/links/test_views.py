"""The engine's view of the linked workers is made when something changes, not when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.engine.loop import Engine
from cloud_gateway.links import link
from cloud_gateway.links.link import Registry, WorkerInfo
from edgespec.core.protocol import messages as m
from edgespec.core.protocol.names import key_id
from tests.support.engines import engine_settings
from tests.support.links import Watched, client, serving, worker_identity
from tests.support.until import until
from tools.doubles.engines import TableTarget
from tools.doubles.workers import OneWorker

WORKERS = 100


def linked(number: int) -> WorkerInfo:
    hello: Any = None
    return WorkerInfo(f"{number:016x}", "lab", b"", "address", hello, groups=frozenset({"default"}), wire=hello)


class Table(OneWorker):
    """The engine's link layer over a real registry of many workers."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry()
        for number in range(WORKERS):
            self.registry.add(linked(number))
        self.linked = lambda: self.registry.views  # type: ignore[method-assign]
        self.view = self.registry.views.get  # type: ignore[method-assign]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The views made, by worker."""
    names: list[str] = []
    original = link.LinkedWorker

    def counted(worker: str, *fields: Any) -> Any:
        names.append(worker)
        return original(worker, *fields)

    monkeypatch.setattr(link, "LinkedWorker", counted)
    return names


def test_the_turns_of_the_engine_make_no_view_of_100_workers(made: list[str]) -> None:
    table = Table()
    assert len(made) == WORKERS
    now = [0.0]
    engine = Engine(TableTarget(), None, engine_settings(), table, clock=lambda: now[0])
    for _ in range(3):
        engine.submit(GenerationRequest([1, 2, 3], 1000, ignore_eos=True))
    while engine.stats.rounds < 50:
        now[0] = max(now[0] + 0.001, engine.turn() or 0.0)
    assert engine.active == 3 and len(made) == WORKERS, "nothing changed"
    worker = table.registry.workers[f"{7:016x}"]
    worker.rtt.sample(0.040)
    table.registry.refresh(worker)
    assert made[WORKERS:] == [worker.id] and table.registry.views[worker.id].rtt_s == 0.040


def test_a_view_is_replaced_only_where_something_changed() -> None:
    table, worker = Registry(), linked(1)
    table.add(worker)
    before = table.views[worker.id]
    table.refresh(worker)
    assert table.views[worker.id] is before
    worker.paused_because = "busy"
    table.refresh(worker)
    assert table.views[worker.id].paused and not before.paused
    other = linked(1)
    table.add(other)
    table.refresh(worker)
    assert not table.views[worker.id].paused and not table.remove(worker), "a link that was replaced has no say"
    assert table.remove(other) and not table.views


async def test_each_event_of_a_link_shows_in_the_view_before_the_engine_sees_it(tmp_path: Path) -> None:
    worker, seen = key_id(worker_identity().key.public), Watched()
    async with serving(tmp_path, seen=seen) as gateway:
        seen.links = gateway.links
        async with client(gateway) as connected:
            await connected.send(m.Pause("busy"))
            await connected.send(m.Resume())
            await until(lambda: len(seen.paused) == 3)
            assert seen.paused == [False, True, False]
            assert gateway.links.view(worker) is gateway.links.linked()[worker]
        await until(lambda: gateway.links.view(worker) is None)
