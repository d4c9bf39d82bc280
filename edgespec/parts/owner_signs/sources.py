"""Sources of signs of the owner: input devices, terminals, battery, and use of the machine by other programs.

They are files that need no root. Time stamps of /dev/input do not change with events, and reading the events needs
root. Everybody may read the devices' counters: interrupts of the keyboard controller and of touchpads, and transfers of
USB keyboards and mice.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from edgespec.shared.procstat import Rate, TaskStat, busy_s, task_stat


class Unavailable(Exception):
    """A source cannot be read on this machine; the text says why and completes "off: …"."""


class Source(Protocol):
    """One kind of sign. Any method may raise Unavailable; the source is opened again later."""

    name: str
    """A key of `edgespec.parts.owner_signs.policy.REASONS`."""
    period_s: float
    """Seconds between two reads."""

    async def open(self) -> None:
        """Finds what is read; the first read gives the state that later ones are compared with."""

    def read(self, now: float) -> float:
        """The latest value, in at most some hundred microseconds; it never waits for another process."""

    async def close(self) -> None:
        """Releases what `open` took."""
        return


KEYBOARD = "01"
MOUSE = "02"
"""bInterfaceProtocol of boot devices (USB HID 1.11). Others of that class report by themselves, as power supplies."""
RESCAN_DEVICES_S = 10.0
"""After which devices that were plugged in meanwhile are found."""


class Growth:
    """How many of some counters grew since the last look; one that is new counts only if `appear` is set."""

    def __init__(self, *, appear: bool = False) -> None:
        self._before: Mapping[str, float] | None = None
        self._appear = appear

    def of(self, counts: Mapping[str, float]) -> int:
        """0 at the first look."""
        before = self._before
        self._before = counts
        if before is None:
            return 0
        return sum(before[key] < count if key in before else self._appear for key, count in counts.items())


class InputDevices(Source):
    """Keyboards, mice and touchpads: PS/2 (i8042), I2C and USB. Bluetooth devices have no such counter."""

    name = "input"
    period_s = 0.25

    def __init__(self, root: Path = Path("/")) -> None:
        self._interrupts = root / "proc/interrupts"
        self._i2c = root / "sys/bus/i2c/drivers"
        self._usb = root / "sys/bus/usb/devices"
        self._growth = Growth()
        self._scan_at = 0.0
        self._lines: re.Pattern[str] = re.compile("")
        self._devices: list[Path] = []

    async def open(self) -> None:
        self._growth = Growth()
        self._scan()
        if not self._counts():
            raise Unavailable("this machine has no keyboard or mouse with a counter that may be read")

    def read(self, now: float) -> float:
        """Number of devices that were used since the last read."""
        if now >= self._scan_at:
            self._scan()
            self._scan_at = now + RESCAN_DEVICES_S
        return self._growth.of(self._counts())

    def _scan(self) -> None:
        names = ["i8042", *(one.name.removeprefix("i2c-") for one in self._i2c.glob("i2c_hid*/*:*"))]
        self._lines = re.compile(rf"^ *(\S+):((?: +\d+)+) .*\b({'|'.join(map(re.escape, names))})\b", re.MULTILINE)
        self._devices = [path for path in sorted(self._usb.glob("*/urbnum")) if self._is_input(path.parent)]

    def _is_input(self, device: Path) -> bool:
        """Whether an interface of the USB device is a boot keyboard or mouse."""
        for interface in self._usb.glob(f"{device.name}:*"):
            kind = [_text(interface / name) for name in ("bInterfaceClass", "bInterfaceProtocol")]
            if kind[0] == "03" and kind[1] in (KEYBOARD, MOUSE):
                return True
        return False

    def _counts(self) -> dict[str, float]:
        lines = self._lines.findall(_text(self._interrupts))
        counts = {f"irq {number}": float(sum(map(int, each.split()))) for number, each, _ in lines}
        for path in self._devices:
            if (transfers := _text(path)).isdecimal():
                counts[path.parent.name] = float(transfers)
        return counts


class Terminals(Source):
    """Terminals that were typed into, or opened: their access time changes with input (at most every 8 s)."""

    name = "terminals"
    period_s = 0.25

    def __init__(self, root: Path = Path("/")) -> None:
        self._dev = root / "dev"
        self._growth = Growth(appear=True)

    async def open(self) -> None:
        """Takes the state to compare with."""
        self._growth = Growth(appear=True)
        if not (self._dev / "pts").is_dir():
            raise Unavailable("there are no terminals in /dev/pts")

    def read(self, now: float) -> float:
        """Number of terminals with input since the last read."""
        times: dict[str, float] = {}
        for path in (*self._dev.glob("pts/[0-9]*"), *self._dev.glob("tty[0-9]*")):
            try:
                times[str(path)] = path.stat().st_atime
            except OSError:  # it was closed meanwhile
                continue

        return self._growth.of(times)


class Battery(Source):
    name = "battery"
    period_s = 1.0

    def __init__(self, root: Path = Path("/")) -> None:
        self._folder = root / "sys/class/power_supply"
        self._batteries: list[Path] = []

    async def open(self) -> None:
        """Finds the machine's batteries; those of mice and keyboards have the scope "Device"."""
        found = sorted(self._folder.glob("*/type"))
        self._batteries = [
            path.parent for path in found if _text(path) == "Battery" and _text(path.with_name("scope")) != "Device"
        ]
        if not self._batteries:
            raise Unavailable("this machine has no battery")

    def read(self, now: float) -> float:
        """1 or 0."""
        return float(any(_text(battery / "status") == "Discharging" for battery in self._batteries))


def _text(path: Path) -> str:
    """A file of the kernel, without its line end; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


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
        self._stat = root / "proc/stat"
        self._self = root / "proc/self"
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
        self._rates = {}
        self._scan_at = -math.inf
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
        nvml = self._nvml
        since = self._seen_us
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(device, since)
        except nvml.NVMLError_NotFound:  # no sample since
            return 0.0
        except nvml.NVMLError as error:
            raise Unavailable(f"the driver does not say who uses the GPU ({type(error).__name__})") from None
        latest = {one.pid: one.smUtil for one in sorted(samples, key=lambda one: one.timeStamp)}
        self._seen_us = max([since, *(int(one.timeStamp) for one in samples)])
        return float(sum(use for pid, use in latest.items() if pid != os.getpid()))
