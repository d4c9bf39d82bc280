"""Engines over doubles, stopped at the end of a test, and whole completions of them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest
from cloud_gateway.engine.exchange import Recording
from cloud_gateway.engine.loop import Engine, EngineSettings
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings as settings_of
from tests.support.driven import DrivenEngine, DrivenLoop
from tests.support.local_policies import WITH_LOCAL
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.workers import OneWorker, Team

Make = Callable[..., Engine]
TIMEOUT_S = 60.0
"""Time for a completion of some hundred tokens, on a machine that is busy with other work."""


@contextmanager
def engines(**more: Any) -> Iterator[Make]:
    """A function that starts engines of a worker, a local draft, a target and settings; `more`: options of each.

    If the event loop's clock is driven, so is theirs.
    """
    running: list[Engine] = []

    def make(
        worker: OneWorker | Team | None = None,
        local: TableDraft | None = None,
        target: TableTarget | None = None,
        recorders: Sequence[Recording] = (),
        **settings: Any,
    ) -> Engine:
        driven = isinstance(asyncio.get_running_loop(), DrivenLoop)
        kind = DrivenEngine if driven else Engine
        engine = kind(
            target or TableTarget(), local, engine_settings(**settings), worker, **{"recorders": recorders, **more}
        )
        if isinstance(worker, Team):
            worker.join(engine)
        elif worker is not None:
            worker.engine = engine
        engine.start()
        running.append(engine)
        return engine

    try:
        yield make
    finally:
        for engine in running:
            engine.stop()


@contextmanager
def started(engine: Engine) -> Iterator[None]:
    """Runs it meanwhile."""
    engine.start()
    try:
        yield
    finally:
        engine.stop()


KEPT = ("prefill_chunk", "queue_limit", "methods", "policies", "makers", "make_rooms")
"""Fields of `EngineSettings` that no table has."""


def engine_settings(**changes: Any) -> EngineSettings:
    """The defaults but for `policy` (its name), what is in KEPT, and fields of the policy table."""
    own = GatewaySettings()
    changes = {"name": changes.pop("policy", own.policy.name), **changes}
    pace = {"policies": WITH_LOCAL} | {name: changes.pop(name) for name in KEPT if name in changes}
    found = settings_of(replace(own, policy=replace(own.policy, **changes)))
    return dataclasses.replace(found, **pace)


async def complete(engine: Engine, request: GenerationRequest) -> tuple[list[int], DoneEvent]:
    """Tokens and end of one completion."""
    async with asyncio.timeout(TIMEOUT_S):
        return await engine.submit(request).whole()
