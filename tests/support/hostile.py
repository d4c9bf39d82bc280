"""The state that no attack on a link may change, and the one log line that it causes."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from cloud_gateway.engine.exchange import LinkEvent
from cloud_gateway.engine.loop import Engine
from edgespec.core.protocol import messages as m
from edgespec.core.protocol.names import key_id
from tests.support.links import Client, GatewayUnderTest, Seen, some_tree, worker_identity
from tests.support.until import until
from tools.doubles.engines import TableTarget

HONEST = worker_identity(b"h" * 32, "honest")
OTHER = worker_identity(b"o" * 32, "other")


async def serves_on(gateway: GatewayUnderTest, honest: Client) -> None:
    """Asserts that the correct worker's trees arrive and its messages reach it, as before."""
    await honest.send(some_tree(request=77))
    await until(lambda: any(tree.request == 77 for _, tree in gateway.seen.of("tree")))
    gateway.links.send(key_id(HONEST.key.public), [m.Close(77, 1, "done")])
    async with asyncio.timeout(20):
        while m.Close(77, 1, "done") not in await honest.receive():
            pass


async def refused_once(gateway: GatewayUnderTest, caplog: pytest.LogCaptureFixture, reason: str, who: str) -> None:
    await until(lambda: gateway.links.rejected[reason])
    assert dict(gateway.links.rejected) == {reason: 1}
    assert gateway.seen.of("rejected") == [(reason,)]
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1 and reason in lines[0] and who in lines[0]
    assert "Traceback" not in caplog.text


class ToEngine(Seen):
    """Passes events on to the engine, and records them."""

    engine: Engine

    def post(self, event: LinkEvent) -> None:
        super().post(event)
        self.engine.post(event)


class Paced(TableTarget):
    """While `paced`, the nth pass waits for the nth frame, at most a quarter of a second, so that no machine is so busy
    that a completion of some tokens ends before a worker made by hand has sent what it is about.
    """

    def __init__(self, seen: Seen, **options: Any) -> None:
        super().__init__(pass_s=0.004, **options)
        self.paced = True
        self.sleep = self._wait
        self._seen = seen

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds)
        until = time.monotonic() + 0.25
        while self.paced and len(self._seen.of("tree")) < self.verified and time.monotonic() < until:
            time.sleep(0.001)


async def opened(hostile: Client) -> m.Open:
    """The first request that a hand-made worker is given."""
    while True:
        for message in await hostile.receive():
            if isinstance(message, m.Open):
                return message
