"""The worker's own priority, so that it yields also where no systemd unit sets it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

LOWEST_NICE = 19


def lower_process() -> None:
    """Gives all threads of this process, and those that they start, the lowest nice value. Always permitted."""
    for thread in Path("/proc/self/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), LOWEST_NICE)


def lower_thread() -> None:
    """Lets the calling thread, and those that it starts, run only where nothing else wants to (SCHED_IDLE).

    Linux derives the idle class of disk access from it (ioprio_set(2)). Only for the drafting thread: the event loop,
    at the lowest nice value, still gets the few milliseconds in which it sends a pause.
    """
    with contextlib.suppress(OSError):  # a sandbox may forbid it; the nice value remains
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
