"""The worker's own priority: its drafting yields also if no systemd unit sets one, and its pause does not wait.

Linux has a nice value for each thread. The threads that compute get the lowest; the event loop, which sees the
owner's return and stops them, keeps the process's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

LOWEST_NICE = 19
"""Not SCHED_IDLE: a thread of that class that is preempted while it holds Python's lock stops the event loop for longer
(dev/decisions/026-owner-first.md)."""


def lower_thread() -> None:
    """Gives this thread, and those that it starts, the lowest nice value. Always permitted."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_NICE)


def run_lowered(work: Callable[[], Result]) -> Result:
    """The result of `work`, or what it raises, from a thread of the lowest nice value."""
    with ThreadPoolExecutor(1, initializer=lower_thread) as pool:
        return pool.submit(work).result()
