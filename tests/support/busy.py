"""Other programs that use every processor, for a bounded time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

MAX_S = 120
"""After which a loop ends by itself, if the test that began it was killed."""


@contextmanager
def busy_loops(a_core: int = 1) -> Iterator[None]:
    """So many loops on each processor of this process."""
    loop = f"import time\nend = time.monotonic() + {MAX_S}\nwhile time.monotonic() < end: pass"
    loops = [
        subprocess.Popen(["taskset", "--cpu-list", str(core), sys.executable, "-c", loop])
        for core in os.sched_getaffinity(0)
        for _ in range(a_core)
    ]
    try:
        yield
    finally:
        for one in loops:
            one.kill()
        for one in loops:
            one.wait()
