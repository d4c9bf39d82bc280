"""The worker's own priority, so that it yields also where no systemd unit sets it."""

from __future__ import annotations

import os
from pathlib import Path

LOWEST_NICE = 19
"""Not SCHED_IDLE: a process of that class paused later on a busy machine, since a thread that is preempted while it
holds Python's lock stops the event loop (dev/LOG.md, "The owner first")."""


def lower_process() -> None:
    """Gives all threads of this process, and those that they start, the lowest nice value. Always permitted."""
    for thread in Path("/proc/self/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), LOWEST_NICE)
