"""Floods from another process: how long the gateway's event loop, which streams completions, is held up."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from edgespec.parts.flood_guard.guards import FloodGuards
from edgespec.parts.flood_guard.sources import LINKS
from tests.parts.flood_guard.flooder import KINDS
from tests.support.links import client, serving, some_tree
from tests.support.until import until

pytestmark = pytest.mark.live
CONNECTIONS = 4
WINDOWS = 9
WINDOW_S = 0.25
GUARDS = FloodGuards(LINKS, LINKS)
LIMIT_S = 120.0
"""After which a process ends by itself, for a test that is killed."""
BURN = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[None]:
    """A child process, until the block is left."""
    child = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    try:
        yield
    finally:
        child.kill()
        await child.wait()


async def usual_gap_s() -> float:
    """How much too late the event loop came back, at most: the median over short windows.

    A standstill of the machine is in one or two of them. Work that a flood makes is in all.
    """
    return statistics.median([await longest_gap_s() for _ in range(WINDOWS)])


async def longest_gap_s() -> float:
    longest = 0.0
    end = time.monotonic() + WINDOW_S
    while (began := time.monotonic()) < end:
        await asyncio.sleep(0.005)
        longest = max(longest, time.monotonic() - began - 0.005)
    return longest


@pytest.mark.claim("floods-hold-the-event-loop-no-longer-than-a-busy-core")
@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_floods_hold_the_event_loop_no_longer_than_a_busy_core(tmp_path: Path, kind: str) -> None:
    local = ("127.0.0.9", 0)
    async with serving(tmp_path, guards=GUARDS) as gateway, client(gateway, local_addr=local) as linked:
        pump = asyncio.create_task(_answer_pings(linked))
        async with process("-c", BURN, str(LIMIT_S)):
            control_s = await usual_gap_s()
        async with process(
            "-m", "tests.parts.flood_guard.flooder", kind, str(gateway.port), str(LIMIT_S), str(CONNECTIONS)
        ):
            await until(lambda: gateway.links.rejected, 30)
            flood_s = await usual_gap_s()
        print(f"{kind}: usual gap {flood_s * 1000:.0f} ms, control {control_s * 1000:.0f} ms")
        assert flood_s < 0.1 + 4 * control_s
        assert not gateway.seen.of("down")
        await linked.send(some_tree())
        await until(lambda: gateway.seen.of("tree"))
        pump.cancel()


async def _answer_pings(linked: object) -> None:
    while True:
        await linked.receive()  # type: ignore[attr-defined]
