"""Linux's counters of processors, processes and threads (proc_stat(5), proc_pid_stat(5)), and rates of counters."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

WINDOW_S = 0.5
"""Over which rates are taken. Half of the second within which drafting stops; 50 ticks of /proc/stat."""


class Rate:
    """Growth per second of a counter, over the latest `WINDOW_S` or the time between two reads if that is longer."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def of(self, now: float, count: float) -> float:
        """The rate after a read of the counter; 0 after the first one."""
        self._seen.append((now, count))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW_S:
            self._seen.popleft()
        began, before = self._seen[0]
        if now > began:
            return max(count - before, 0.0) / (now - began)
        return 0.0


class TaskStat(NamedTuple):
    """Counters of a process with all its threads, also those that have ended, or of one thread."""

    state: str
    """One letter, such as R for one that runs or could run."""
    user_s: float
    """Processor seconds in user mode so far."""
    system_s: float
    """Processor seconds in the kernel so far."""
    nice: int

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s


def task_stat(folder: Path) -> TaskStat:
    """`folder`: `/proc/PID` or `/proc/PID/task/TID`. Raises OSError if it has ended, ValueError, IndexError."""
    fields = (folder / "stat").read_text().rpartition(")")[2].split()  # the name in brackets may contain anything
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return TaskStat(fields[0], int(fields[11]) * tick_s, int(fields[12]) * tick_s, int(fields[16]))


def waited_s(pid: int) -> float:
    """Seconds that a process's threads could run and waited for a core (Linux schedstat, second figure)."""
    return schedstat_s(pid, 1)


MAX_PRESSURE = 20.0
"""Percent of the last ten seconds in which some thread waited for a processor; an idle machine has less than 2."""
MAX_LOAD = 2.0
"""Threads that could run for each processor, where the kernel does not report the pressure (PSI)."""


def busy_because(root: Path = Path("/")) -> str:
    """Why this machine is busy, as a sentence without its full stop; empty if it is not, or does not say.

    By the pressure on its processors (Linux PSI), or by its load if there is none (proc_loadavg(5)).
    """
    try:
        load = float((root / "proc/loadavg").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return ""

    cores = os.cpu_count() or 1
    says = f"this machine is busy: its load is {load:.1f} on {cores} processors"
    try:
        pressure = float((root / "proc/pressure/cpu").read_text().split()[1].removeprefix("avg10="))
    except (OSError, ValueError, IndexError):
        return says if load > MAX_LOAD * cores else ""

    if pressure < MAX_PRESSURE:
        return ""
    return f"{says}, and threads waited for one in {pressure:.0f} % of the last ten seconds"


def schedstat_s(pid: int, figure: int) -> float:
    """A figure of Linux's schedstat, counted from 0, over a process's threads so far; 0.0 if it has ended."""
    total = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # a thread may have ended since
            total += int(file.read_text().split()[figure])
    return total / 1e9


def busy_s(stat: Path, cores: Collection[int] | None = None, *, low: bool = False) -> float:
    """Processor seconds since boot, of all processors or of these; `low`: also of tasks with a low priority.

    `stat`: /proc/stat, which counts those apart (nice over 0). Raises OSError, ValueError, IndexError.
    """
    names = {"cpu"} if cores is None else {f"cpu{core}" for core in cores}
    ticks = 0
    for line in stat.read_text().splitlines():
        name, *counts = line.split(maxsplit=8)
        if name in names:
            user, nice, system, _idle, _iowait, irq, softirq = map(int, counts[:7])
            ticks += user + low * nice + system + irq + softirq

    return ticks / os.sysconf("SC_CLK_TCK")


def available_memory() -> float:
    """Bytes available without swapping (proc_meminfo(5)); infinite if the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return float("inf")
    return next(
        (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")),
        float("inf"),
    )
