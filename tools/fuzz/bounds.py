"""Bounds on what one case may take, which only an input that decoders should have refused exceeds."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

CPU_S = 60.0
"""Processor time of the process; a case takes some milliseconds."""
MEMORY_MB = 512
"""By which the process may grow."""


@contextmanager
def bounded() -> Iterator[None]:
    """Raises AssertionError where what is done inside takes too much time or memory. In the main thread only."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    former = signal.signal(signal.SIGVTALRM, _stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mb < MEMORY_MB, f"it took {grown_mb:.0f} MB of memory"


def _stop(*_: object) -> None:
    raise AssertionError(f"it took {CPU_S:g} s of processor time")
