"""A busy machine by the kernel's figures: planted files, and real busy loops."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgespec.shared.procstat import busy_because
from tests.support.busy import busy_loops
from tests.support.until import until

PSI = "some avg10={} avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


@pytest.mark.parametrize(
    ("load_a_core", "pressure", "busy"),
    [(0.1, 1.0, False), (9.0, 1.0, False), (9.0, 45.0, True), (9.0, None, True), (0.1, None, False)],
)
def test_pressure_decides_and_load_if_there_is_none(
    tmp_path: Path, load_a_core: float, pressure: float | None, busy: bool
) -> None:
    load = load_a_core * (os.cpu_count() or 1)
    (tmp_path / "proc/pressure").mkdir(parents=True)
    (tmp_path / "proc/loadavg").write_text(f"{load:.2f} 0.50 0.25 3/100 4711\n")
    if pressure is not None:
        (tmp_path / "proc/pressure/cpu").write_text(PSI.format(pressure))

    found = busy_because(tmp_path)
    assert bool(found) == busy
    assert not busy or f"its load is {load:.1f} on" in found


def test_a_system_without_these_files_is_not_called_busy(tmp_path: Path) -> None:
    assert busy_because(tmp_path) == ""


@pytest.mark.skipif(not Path("/proc/pressure/cpu").exists(), reason="the kernel reports no pressure (PSI)")
async def test_two_busy_loops_a_core_are_seen() -> None:
    with busy_loops(2):
        await until(lambda: busy_because().startswith("this machine is busy"), 60)
