"""Use of the machine by others: their time in /proc/stat, the pressure of other control groups, NVIDIA GPUs."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

from edgespec.shared.procstat import Rate, TaskStat, busy_s, task_stat
from edgespec.worker.presence.source import Source, Unavailable

MAX_GROUPS = 32
"""Control groups at one level whose pressure is read, a file each; a level with more of them is left out."""
RESCAN_S = 2.0
"""After which groups that began meanwhile are found."""


class OtherPrograms(Source):
    """Cores that other processes keep busy, without those that run at a low priority themselves (nice over 0).

    /proc/stat counts those apart, so that two workers on one machine do not take each other for the owner.
    """

    name = "cpu"
    period_s = 0.25

    def __init__(self, root: Path = Path("/")) -> None:
        self._stat, self._self = root / "proc/stat", root / "proc/self"
        self._rate = Rate()

    async def open(self) -> None:
        """Checks that both files can be read."""
        self._rate = Rate()
        self._others_s()

    def read(self, now: float) -> float:
        """In cores."""
        return self._rate.of(now, self._others_s())

    def _others_s(self) -> float:
        """Processor seconds of others since boot (proc_stat(5), proc_pid_stat(5))."""
        try:
            busy = busy_s(self._stat)
            own = task_stat(self._self)
            threads = [_thread(path) for path in self._self.glob("task/*")]
        except (OSError, ValueError, IndexError) as error:
            raise Unavailable(f"{self._stat} cannot be read ({type(error).__name__})") from None
        own_user_s = own.user_s
        if any(thread.nice > 0 for thread in threads):  # it drafts in those; niced user time is counted apart
            own_user_s = sum(thread.user_s for thread in threads if thread.nice <= 0)
        return busy - own.system_s - own_user_s


def _thread(folder: Path) -> TaskStat:
    """Zeros if it has ended."""
    try:
        return task_stat(folder)
    except OSError:
        return TaskStat("X", 0.0, 0.0, 0)


class OtherGroups(Source):
    """Share of time in which some task of another control group waits for a processor (PSI), the worst group's.

    "Other" are the neighbours of this process's group and of each group above it (cgroups version 2).
    """

    name = "pressure"
    period_s = 0.25

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc = root / "proc/self"
        self._root = root
        self._rates: dict[Path, Rate] = {}
        self._scan_at = -math.inf

    async def open(self) -> None:
        """Checks that the kernel measures pressure, and that this process has a group of its own."""
        if not (self._root / "proc/pressure/cpu").exists():
            raise Unavailable("this kernel does not measure pressure (PSI)")
        self._rates, self._scan_at = {}, -math.inf
        self._others()

    def read(self, now: float) -> float:
        """In percent. Of a group that began since, from the second read on."""
        if now >= self._scan_at:
            self._rates = {path: self._rates.get(path) or Rate() for path in self._others()}
            self._scan_at = now + RESCAN_S
        worst = 0.0
        for path, rate in self._rates.items():
            try:
                some = path.read_text().splitlines()[0]
                total_us = int(some.rpartition("total=")[2])
            except (OSError, ValueError, IndexError):  # the group ended
                continue
            worst = max(worst, rate.of(now, total_us / 1e6) * 100)
        return worst

    def _others(self) -> list[Path]:
        mount, own = self._placed()
        found: list[Path] = []
        for here in (own, *own.parents):
            if here == mount:
                break
            try:
                files = [one / "cpu.pressure" for one in here.parent.iterdir() if one != here]
                beside = [one for one in files if one.is_file()]
            except OSError as error:
                raise Unavailable(f"the control groups cannot be listed ({error.strerror})") from None
            found += beside if len(beside) <= MAX_GROUPS else []
        return found

    def _placed(self) -> tuple[Path, Path]:
        """The mount of cgroups version 2, and the folder of this process's group."""
        try:
            mounts = [line.split() for line in (self._proc / "mounts").read_text().splitlines()]
            groups = (self._proc / "cgroup").read_text().splitlines()
        except OSError as error:
            raise Unavailable(f"the control groups cannot be read ({error.strerror})") from None
        places = [fields[1] for fields in mounts if len(fields) > 2 and fields[2] == "cgroup2"]
        own = next((line[3:] for line in groups if line.startswith("0::")), "/")
        if not places:
            raise Unavailable("cgroups version 2 are not mounted")
        if own == "/":
            raise Unavailable("this process is in no control group of its own")
        mount = self._root / places[0].lstrip("/")
        return mount, mount / own.lstrip("/")


class OtherGpuUse(Source):
    """Share of the busiest GPU's time that other processes take, in percent, through NVML.

    The driver samples each process and keeps the samples; a process that only holds memory has none. `nvidia-ml-py`,
    which is not installed with a worker. Not tried on a GPU.
    """

    name = "gpu"
    period_s = 0.25

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[Any] = []
        self._seen_us = 0

    async def open(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise Unavailable("the package nvidia-ml-py is not installed") from None
        try:
            pynvml.nvmlInit()
            self._devices = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as error:
            raise Unavailable(f"NVML cannot be used ({type(error).__name__})") from None
        self._nvml, self._seen_us = pynvml, int(time.time() * 1e6)  # its samples carry the time of day
        if not self._devices:
            raise Unavailable("this machine has no NVIDIA GPU")

    def read(self, now: float) -> float:
        """The highest of the samples since the last read."""
        return max(self._others(device) for device in self._devices)

    def _others(self, device: Any) -> float:
        nvml, since = self._nvml, self._seen_us
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(device, since)
        except nvml.NVMLError_NotFound:  # no sample since
            return 0.0
        except nvml.NVMLError as error:
            raise Unavailable(f"the driver does not say who uses the GPU ({type(error).__name__})") from None
        latest = {one.pid: one.smUtil for one in sorted(samples, key=lambda one: one.timeStamp)}
        self._seen_us = max([since, *(int(one.timeStamp) for one in samples)])
        return float(sum(use for pid, use in latest.items() if pid != os.getpid()))
