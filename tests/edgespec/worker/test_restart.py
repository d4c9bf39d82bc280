"""A worker whose gateway restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

from edgespec.core.protocol.redial import SPREAD_S
from tests.edgespec.worker.test_link import Sleeps, running
from tests.support.links import Daemon, serving
from tests.support.until import until


async def test_a_gateway_that_restarts_is_dialled_every_few_seconds(tmp_path: Path) -> None:
    """A thousandth of real time passes; the port is closed for longer than the shortest time of a restart."""
    sleeps, daemon, loop = Sleeps(), Daemon(), asyncio.get_running_loop()
    async with serving(tmp_path) as gateway:
        gateway.links.start_s = 900.0
        async with running(gateway, daemon, sleep=sleeps, clock=lambda: 1000 * loop.time()):
            await until(lambda: daemon.of("up"))
            await asyncio.sleep(0.05)  # a link of 50 s
            await gateway.links.stop()
            ended_at = loop.time()
            await until(lambda: loop.time() - ended_at > 0.4)
    assert len(sleeps.waits_s) > 8
    assert SPREAD_S[0] <= min(sleeps.waits_s) and max(sleeps.waits_s) <= SPREAD_S[1]
