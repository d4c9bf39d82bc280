"""What Linux counts of one process or thread (proc_pid_stat(5))."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class TaskStat(NamedTuple):
    """Of a process with all its threads, also those that have ended, or of one thread."""

    state: str
    """One letter, such as R for one that runs or could run."""
    user_s: float
    """Processor seconds in user mode so far."""
    system_s: float
    """Processor seconds in the kernel so far."""
    nice: int

    @property
    def cpu_s(self) -> float:
        """Processor seconds so far."""
        return self.user_s + self.system_s


def task_stat(folder: Path) -> TaskStat:
    """`folder`: `/proc/PID` or `/proc/PID/task/TID`. Raises OSError where it has ended, ValueError, IndexError."""
    fields = (folder / "stat").read_text().rpartition(")")[2].split()  # the name in brackets may contain anything
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return TaskStat(fields[0], int(fields[11]) * tick_s, int(fields[12]) * tick_s, int(fields[16]))


def ran_s(pid: int) -> float:
    """Seconds that a process's threads have run so far (Linux schedstat, first figure); 0.0 where it has ended."""
    return _schedstat(pid, 0)


def waited_s(pid: int) -> float:
    """Seconds that they could run and waited for a core (second figure)."""
    return _schedstat(pid, 1)


def _schedstat(pid: int, figure: int) -> float:
    total = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # a thread may have ended since
            total += int(file.read_text().split()[figure])
    return total / 1e9
