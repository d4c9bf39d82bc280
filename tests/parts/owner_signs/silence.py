"""A key in a terminal, and when a worker is silent after a sign."""

from __future__ import annotations

import asyncio
import os
import time

from edgespec.parts.owner_signs.presence import OWNER_FIRST
from tests.support.services import Running

SILENT_S = 0.3
"""Without a step after the pause: longer than any step of the tiny model."""


def press(keyboard: int, program: int) -> None:
    """A key that the program reads."""
    os.write(keyboard, b"\n")
    os.read(program, 1)


async def silence(running: Running) -> float:
    """Monotonic time of the last change of the step count, once the gateway has the pause and no step follows."""
    drafter = running.service.daemon.drafter
    passes = drafter.passes
    last = time.monotonic()
    while running.paused_because != OWNER_FIRST or time.monotonic() < last + SILENT_S:
        if running.paused_because != OWNER_FIRST or drafter.passes != passes:
            passes = drafter.passes
            last = time.monotonic()
        await asyncio.sleep(0.002)
    return last
