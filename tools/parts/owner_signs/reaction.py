"""`python -m tools.parts.owner_signs.reaction`: how soon a worker is silent when its owner comes back (two minutes).

A real service with a tiny model drafts for a gateway. A key is pressed in a terminal of this machine, or a program
begins to compute on each core, for which nothing else may run on the machine. Seconds are from then until no draft step
follows. Exit status 1 if one exceeds LIMIT_S.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from edgespec.parts.owner_signs.settings import OwnerSection
from edgespec.parts.owner_signs.sources import OtherPrograms, Source, Terminals
from edgespec_lab.markdown import table
from tests.parts.owner_signs.signed import with_signs
from tests.parts.owner_signs.silence import press, silence
from tests.support.services import serving_worker

LIMIT_S = 1.0
BURN = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
"""A program that computes, and ends by itself."""


Sign = AbstractContextManager[Callable[[], None]]


@contextmanager
def key() -> Iterator[Callable[[], None]]:
    """A terminal; called, a key is pressed there."""
    keyboard, program = os.openpty()
    os.utime(os.ttyname(program), (1000, 1000))  # the kernel sets the time only if it is 8 s old
    yield lambda: press(keyboard, program)
    os.close(keyboard)
    os.close(program)


@contextmanager
def job() -> Iterator[Callable[[], None]]:
    """Called, a program begins on each core."""
    running: list[subprocess.Popen[bytes]] = []
    yield lambda: running.extend(subprocess.Popen([sys.executable, "-c", BURN]) for _ in os.sched_getaffinity(0))
    for process in running:
        process.kill()
        process.wait()


SIGNS: Mapping[str, tuple[Callable[[], Source], Callable[[], Sign]]] = {
    "key": (Terminals, key),
    "job": (OtherPrograms, job),
}
"""What the owner does: the source that sees it, and who does it."""


async def silent_after(name: str, folder: Path) -> float:
    """Seconds from the sign until the worker is silent."""
    source, made = SIGNS[name]
    part = with_signs(OwnerSection(idle_s=2.0), source())
    async with serving_worker(folder, [part]) as running, asyncio.timeout(60):
        with made() as give:
            # Until the source has seen the machine without the sign.
            await asyncio.sleep(1.0)
            await running.drafts(1)
            began = time.monotonic()
            give()
            return await silence(running) - began


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a row for each sign."""
    parser = argparse.ArgumentParser(prog="python -m tools.parts.owner_signs.reaction", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs of each sign")
    parser.add_argument("--sign", nargs="+", choices=[*SIGNS], default=[*SIGNS], help="what the owner does")
    options = parser.parse_args(arguments)
    seconds: dict[str, list[float]] = {}
    for name in options.sign:
        seconds[name] = []
        for _ in range(options.runs):
            with tempfile.TemporaryDirectory() as folder:
                seconds[name].append(asyncio.run(silent_after(name, Path(folder))))

    rows = [[name, *(f"{one:.3f}" for one in times)] for name, times in seconds.items()]
    print("\n".join(table(["sign", *(f"run {run + 1}, s" for run in range(options.runs))], rows)))
    return int(max(max(times) for times in seconds.values()) > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
