"""A worker falls silent within a second of a key in a real terminal: real service, link, drafter and source."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.parts.owner_signs.settings import OwnerSection
from edgespec.parts.owner_signs.sources import Terminals
from tests.parts.owner_signs.signed import with_signs
from tests.parts.owner_signs.silence import SILENT_S, press, silence
from tests.support.services import serving_worker

RETURNS = 5
LIMIT_S = 1.0

pytestmark = pytest.mark.live


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a pseudo-terminal: keyboard and program."""
    ends = os.openpty()
    yield ends
    for end in ends:
        os.close(end)


async def test_five_keys_each_silence_the_worker(tmp_path: Path, terminal: tuple[int, int]) -> None:
    times: list[float] = []
    part = with_signs(OwnerSection(idle_s=2.0), Terminals())
    async with serving_worker(tmp_path, [part]) as running, asyncio.timeout(120):
        for number in range(1, RETURNS + 1):
            os.utime(os.ttyname(terminal[1]), (1000, 1000))  # the kernel sets the time only if it is 8 s old
            await asyncio.sleep(2 * Terminals.period_s)  # until the source has seen it
            await running.drafts(number)
            began = time.monotonic()
            press(*terminal)
            times.append(await silence(running) - began)
            if number == RETURNS:
                break
            while running.paused_because is not None:  # noqa: ASYNC110  set by the link
                await asyncio.sleep(0.02)
        passes = running.service.daemon.drafter.passes
        running.open(100 + number)  # with an empty tree
        await asyncio.sleep(SILENT_S)
        assert running.service.daemon.drafter.passes == passes
    print(f"time to silence: p50 {statistics.median(times):.3f} s, max {max(times):.3f} s")
    assert max(times) <= LIMIT_S, times
