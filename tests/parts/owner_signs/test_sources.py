"""Each source on files in the kernel's format, and on this machine if it has them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.parts.owner_signs.sources import (
    MAX_GROUPS,
    RESCAN_S,
    Battery,
    InputDevices,
    OtherGroups,
    OtherPrograms,
    Terminals,
    Unavailable,
)
from edgespec.shared.procstat import Rate

TICK = os.sysconf("SC_CLK_TCK")


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_a_rate_is_taken_over_the_latest_half_second() -> None:
    rate = Rate()
    assert rate.of(0.0, 100) == 0
    assert rate.of(0.25, 100) == 0
    assert rate.of(0.5, 100) == 0
    assert rate.of(0.75, 100.25) == pytest.approx(0.5)  # one core, for half of the window
    assert rate.of(1.0, 100.5) == pytest.approx(1.0)
    assert rate.of(9.0, 100.5) == 0
    assert rate.of(10.0, 50) == 0  # a counter that begins again


def cpu_files(
    root: Path, *, user: int, niced: int, system: int, own: tuple[int, int], nice: int = 19, loop_user: int = 0
) -> None:
    put(root, "proc/stat", f"cpu  {user} {niced} {system} 900000 500 0 20 7 0 0\ncpu0 1 0 1 9 9 0 0 0 0 0\nintr 5\n")
    fields = [f"S 1 1 1 0 -1 4194304 100 0 0 0 {own[0]} {own[1]} 0 0 39 {nice} 3 0 17 9 9 1844"]
    put(root, "proc/self/stat", f"4242 (edge) spec) {' '.join(fields)}\n")
    loop = [f"S 1 1 1 0 -1 4194304 100 0 0 0 {loop_user} 0 0 0 20 0 3 0 17 9 9 1844"]
    put(root, "proc/self/task/4242/stat", f"4242 (edge) spec) {' '.join(loop)}\n")
    put(root, "proc/self/task/4243/stat", f"4243 (drafting) {' '.join(fields)}\n")


@pytest.mark.parametrize(("nice", "cores"), [(19, 1.25), (0, 0.75)])
async def test_niced_programs_and_this_process_are_not_the_owner(tmp_path: Path, nice: int, cores: float) -> None:
    source = OtherPrograms(tmp_path)
    cpu_files(tmp_path, user=1000, niced=500, system=100, own=(300, 50), nice=nice)
    await source.open()
    source.read(0.0)
    # In a second: 1 core of user time, 2 cores niced, half a core in the kernel, of which a quarter is this process's.
    cpu_files(
        tmp_path, user=1000 + TICK, niced=500 + 2 * TICK, system=100 + TICK // 2,
        own=(300 + TICK // 2, 50 + TICK // 4), nice=nice,
    )  # fmt: skip
    assert source.read(1.0) == pytest.approx(cores)


async def test_of_a_niced_worker_the_event_loop_counts_as_its_own(tmp_path: Path) -> None:
    source = OtherPrograms(tmp_path)
    cpu_files(tmp_path, user=1000, niced=500, system=100, own=(300, 50), loop_user=10)
    await source.open()
    source.read(0.0)
    cpu_files(
        tmp_path, user=1000 + TICK, niced=500 + TICK, system=100, own=(300 + TICK, 50), loop_user=10 + TICK // 4,
    )  # fmt: skip
    assert source.read(1.0) == pytest.approx(0.75)


async def test_without_proc_the_source_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="proc/stat cannot be read"):
        await OtherPrograms(tmp_path).open()


async def test_a_real_busy_program_counts_with_its_whole_time() -> None:
    source = OtherPrograms()
    await source.open()
    began = time.monotonic()
    source.read(began)
    spin = "import time,sys\nwhile time.process_time() < 0.3: pass\nprint(time.process_time())"
    busy = await asyncio.create_subprocess_exec(sys.executable, "-c", spin, stdout=asyncio.subprocess.PIPE)
    used = float((await asyncio.wait_for(busy.communicate(), 60))[0])
    ended = time.monotonic()
    assert source.read(ended) * (ended - began) >= used - 0.1  # ticks of 10 ms, also of other programs


def groups(root: Path, names: list[str], own: str) -> None:
    put(root, "proc/self/mounts", "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n")
    put(root, "proc/self/cgroup", f"3:cpu:/x\n0::{own}\n")
    put(root, "proc/pressure/cpu", "")
    for name in names:
        pressure(root, name, 0)


def pressure(root: Path, name: str, total_us: int) -> None:
    text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    put(root, f"sys/fs/cgroup/{name}/cpu.pressure", text)


OWN = "/system.slice/edgespec.service"


async def test_the_worst_other_group_counts_and_never_the_own(tmp_path: Path) -> None:
    groups(tmp_path, ["system.slice", "system.slice/edgespec.service", "user.slice", "system.slice/cron.service"], OWN)
    source = OtherGroups(tmp_path)
    await source.open()
    assert source.read(0.0) == 0
    pressure(tmp_path, "system.slice/edgespec.service", 900_000)
    pressure(tmp_path, "system.slice", 900_000)
    assert source.read(1.0) == 0
    pressure(tmp_path, "user.slice", 300_000)
    pressure(tmp_path, "system.slice/cron.service", 100_000)
    assert source.read(2.0) == pytest.approx(30)


async def test_a_level_of_very_many_groups_is_left_out(tmp_path: Path) -> None:
    many = [f"system.slice/{i}.service" for i in range(MAX_GROUPS + 1)]
    groups(tmp_path, ["system.slice", "system.slice/edgespec.service", "user.slice", *many], OWN)
    source = OtherGroups(tmp_path)
    await source.open()
    source.read(0.0)
    pressure(tmp_path, many[0], 900_000)
    assert source.read(1.0) == 0
    pressure(tmp_path, "user.slice", 900_000)
    assert source.read(2.0) == pytest.approx(90)


@pytest.mark.parametrize(
    ("own", "mounts", "says"),
    [
        ("/", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0", "no control group of its own"),
        (OWN, "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0", "version 2 are not mounted"),
        (OWN, "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0", "cannot be listed"),
    ],
)
async def test_groups_that_cannot_be_compared_are_said(tmp_path: Path, own: str, mounts: str, says: str) -> None:
    put(tmp_path, "proc/self/mounts", mounts)
    put(tmp_path, "proc/self/cgroup", f"0::{own}\n")
    put(tmp_path, "proc/pressure/cpu", "")
    with pytest.raises(Unavailable, match=says):
        await OtherGroups(tmp_path).open()


async def test_a_kernel_without_pressure_is_said(tmp_path: Path) -> None:
    groups(tmp_path, ["system.slice/edgespec.service"], OWN)
    (tmp_path / "proc/pressure/cpu").unlink()
    with pytest.raises(Unavailable, match="does not measure pressure"):
        await OtherGroups(tmp_path).open()


async def test_groups_that_begin_and_end_are_followed(tmp_path: Path) -> None:
    groups(tmp_path, ["system.slice/edgespec.service", "system.slice/cron.service"], OWN)
    source = OtherGroups(tmp_path)
    await source.open()
    assert source.read(0.0) == 0
    (tmp_path / "sys/fs/cgroup/system.slice/cron.service/cpu.pressure").unlink()
    pressure(tmp_path, "user.slice", 900_000)
    assert source.read(RESCAN_S) == 0  # the first look at it
    pressure(tmp_path, "user.slice", 1_300_000)
    assert source.read(RESCAN_S + 1) == pytest.approx(40)


PRESSED = """
import asyncio, os, subprocess, sys, time
from pathlib import Path
from edgespec.parts.owner_signs.sources import OtherGroups
base = Path(sys.argv[1])
(base / "worker/cgroup.procs").write_text(str(os.getpid()))
async def main():
    source = OtherGroups()
    await source.open()
    source.read(time.monotonic())
    (base / "owner").mkdir()  # begins later
    join = f"echo $$ > {base}/owner/cgroup.procs; exec taskset -c 0 timeout 30 sh -c 'while :; do :; done'"
    busy = [subprocess.Popen(["sh", "-c", join]) for _ in range(2)]
    values = [0.0]
    while len(values) < 80 and values[-1] < 20:
        await asyncio.sleep(0.25)
        values.append(source.read(time.monotonic()))
    for one in busy:
        one.terminate()
        one.wait()
    print(max(values))
asyncio.run(main())
"""


@pytest.fixture
def control_group() -> Iterator[Path]:
    """A control group of version 2 with an empty one for a worker; with root only."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    mount = next((Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"), None)
    if mount is None or not os.access(mount, os.W_OK) or not Path("/proc/pressure/cpu").exists():
        pytest.skip("needs root, cgroups version 2 and PSI")
    base = mount / f"edgespec-test-{os.getpid()}"
    base.mkdir()
    try:
        (base / "worker").mkdir()
        yield base
    finally:
        for group in (base / "owner", base / "worker", base):
            for _ in range(100):
                try:
                    group.rmdir()
                except FileNotFoundError:
                    break
                except OSError:  # a process in it has not ended yet
                    time.sleep(0.1)
                else:
                    break


@pytest.mark.live
def test_two_programs_on_one_core_press_in_a_real_group(control_group: Path) -> None:
    command = [sys.executable, "-c", PRESSED, str(control_group)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout) >= 20


INTERRUPTS = """           CPU0       CPU1
  1:       {keys}          5  IR-IO-APIC    1-edge      i8042
  9:         77          0  IR-IO-APIC    9-fasteoi   acpi
 51:          0        {touches}  IR-IO-APIC   51-fasteoi   ELAN0732:00
130:     {disk}          0 IR-PCI-MSIX-0000:00:14.0    0-edge      xhci_hcd
NMI:          0          0   Non-maskable interrupts
"""


def usb(root: Path, device: str, kind: str, protocol: str, transfers: int) -> None:
    put(root, f"sys/bus/usb/devices/{device}/urbnum", f"{transfers}\n")
    put(root, f"sys/bus/usb/devices/{device}:1.0/bInterfaceClass", f"{kind}\n")
    put(root, f"sys/bus/usb/devices/{device}:1.0/bInterfaceProtocol", f"{protocol}\n")


async def test_only_input_devices_count_as_input(tmp_path: Path) -> None:
    put(tmp_path, "sys/bus/i2c/drivers/i2c_hid_acpi/i2c-ELAN0732:00/name", "ELAN0732:00\n")
    put(tmp_path, "proc/interrupts", INTERRUPTS.format(keys=10, touches=20, disk=30))
    for device, kind, protocol in (("1-1", "03", "01"), ("1-2", "03", "02"), ("1-3", "03", "00"), ("1-4", "08", "50")):
        usb(tmp_path, device, kind, protocol, 100)
    source = InputDevices(tmp_path)
    await source.open()
    assert source.read(0.0) == 0
    put(tmp_path, "proc/interrupts", INTERRUPTS.format(keys=10, touches=20, disk=99))
    usb(tmp_path, "1-3", "03", "00", 200)  # a power supply that reports by itself
    usb(tmp_path, "1-4", "08", "50", 200)  # a disk
    assert source.read(1.0) == 0
    put(tmp_path, "proc/interrupts", INTERRUPTS.format(keys=11, touches=20, disk=99))
    assert source.read(2.0) == 1
    put(tmp_path, "proc/interrupts", INTERRUPTS.format(keys=11, touches=29, disk=99))
    usb(tmp_path, "1-2", "03", "02", 101)
    assert source.read(3.0) == 2
    assert source.read(4.0) == 0


async def test_a_keyboard_that_is_plugged_in_is_found(tmp_path: Path) -> None:
    put(tmp_path, "proc/interrupts", INTERRUPTS.format(keys=1, touches=0, disk=0))
    source = InputDevices(tmp_path)
    await source.open()
    source.read(0.0)
    usb(tmp_path, "2-1", "03", "01", 7)
    assert source.read(11.0) == 0
    usb(tmp_path, "2-1", "03", "01", 8)
    assert source.read(11.25) == 1


async def test_a_machine_without_keyboard_or_battery_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no keyboard or mouse"):
        await InputDevices(tmp_path).open()
    with pytest.raises(Unavailable, match="no battery"):
        await Battery(tmp_path).open()
    with pytest.raises(Unavailable, match="no terminals"):
        await Terminals(tmp_path).open()


async def test_only_the_machines_own_battery_counts(tmp_path: Path) -> None:
    supply = "sys/class/power_supply"
    for name, kind, scope in (("AC", "Mains", ""), ("BAT0", "Battery", ""), ("hid-mouse", "Battery", "Device")):
        put(tmp_path, f"{supply}/{name}/type", f"{kind}\n")
        put(tmp_path, f"{supply}/{name}/status", "Discharging\n" if name != "BAT0" else "Full\n")
        if scope:
            put(tmp_path, f"{supply}/{name}/scope", f"{scope}\n")
    source = Battery(tmp_path)
    await source.open()
    assert source.read(0.0) == 0
    put(tmp_path, f"{supply}/BAT0/status", "Discharging\n")
    assert source.read(1.0) == 1


async def test_typing_counts_and_printing_does_not(tmp_path: Path) -> None:
    put(tmp_path, "dev/pts/0", "")
    os.utime(tmp_path / "dev/pts/0", (1000, 1000))
    source = Terminals(tmp_path)
    await source.open()
    assert source.read(0.0) == 0
    os.utime(tmp_path / "dev/pts/0", (1000, 2000))
    assert source.read(1.0) == 0
    os.utime(tmp_path / "dev/pts/0", (1008, 2000))
    assert source.read(2.0) == 1
    put(tmp_path, "dev/tty2", "")  # somebody logs in
    assert source.read(3.0) == 1
    (tmp_path / "dev/tty2").unlink()
    assert source.read(4.0) == 0


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A real pseudo-terminal: the side of the keyboard, and that of the program."""
    keyboard, program = os.openpty()
    yield keyboard, program
    os.close(keyboard)
    os.close(program)


async def test_a_key_in_a_real_terminal_is_seen(terminal: tuple[int, int]) -> None:
    keyboard, program = terminal
    if not Path("/dev/pts").joinpath(Path(os.ttyname(program)).name).exists():
        pytest.skip("the terminals of this machine are not in /dev/pts")
    os.utime(os.ttyname(program), (1000, 1000))  # as if nobody had typed for a while
    source = Terminals()
    await source.open()
    source.read(0.0)
    os.write(keyboard, b"x\n")
    os.read(program, 2)
    assert source.read(1.0) >= 1
