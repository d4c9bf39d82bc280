"""Input devices, terminals and the battery, from files that need no root.

Time stamps of /dev/input do not change with events, and reading the events needs root. Everybody may read the
devices' counters: interrupts of the keyboard controller and of touchpads, and transfers of USB keyboards and mice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from edgespec.worker.presence.source import Source, Unavailable

KEYBOARD, MOUSE = "01", "02"
"""bInterfaceProtocol of boot devices (USB HID 1.11). Others of that class report by themselves, as power supplies."""
RESCAN_S = 10.0
"""After which devices that were plugged in meanwhile are found."""


class Growth:
    """How many of some counters grew since the last look; one that is new counts only if `appear` is set."""

    def __init__(self, *, appear: bool = False) -> None:
        self._before: Mapping[str, float] | None = None
        self._appear = appear

    def of(self, counts: Mapping[str, float]) -> int:
        """0 at the first look."""
        before, self._before = self._before, counts
        if before is None:
            return 0
        return sum(before[key] < count if key in before else self._appear for key, count in counts.items())


class InputDevices(Source):
    """Keyboards, mice and touchpads: PS/2 (i8042), I2C and USB. Bluetooth devices have no such counter."""

    name = "input"
    period_s = 0.25

    def __init__(self, root: Path = Path("/")) -> None:
        self._interrupts, self._i2c = root / "proc/interrupts", root / "sys/bus/i2c/drivers"
        self._usb = root / "sys/bus/usb/devices"
        self._growth, self._scan_at = Growth(), 0.0
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
            self._scan_at = now + RESCAN_S
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
