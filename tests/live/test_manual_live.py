"""What README and the manual show runs from this checkout: the scenario of `tools.check.wheel`, without its wheel."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edgespec.shared.folders import cache_dir
from tools.check.wheel.__main__ import shown, verb_path
from tools.check.wheel.place import ROOT, Place, Row
from tools.check.wheel.scenario import EXCUSED, play

EXCUSED_HERE = {
    ("edgespec", "demo"): "test_demo_live.py",
    ("edgespec", "install-service"): "test_systemd_live.py",
    ("edgespec", "uninstall"): "test_systemd_live.py",
}
"""The folder in which the scenario runs, in an environment of the wheel alone."""


@pytest.mark.live
@pytest.mark.timeout(900)
def test_every_command_of_readme_and_manual_runs(short_folder: Path) -> None:
    programs = short_folder / "bin"
    rows = list[Row]()
    programs.mkdir()
    for program, module in {"edgespec": "edgespec", "cloud-gateway": "cloud_gateway"}.items():
        (programs / program).write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m {module} "$@"\n')
        (programs / program).chmod(0o755)
    places = [Place(name, short_folder / name, programs, cache_dir().parent, rows) for name in ("worker", "gateway")]
    for place in places:
        place.folder.mkdir()
    places[0].run("edgespec", "config", into="worker.toml")
    places[0].run("edgespec", "models", "fetch", "auto:quantised")
    play(*places, long=False)
    assert [f"{row.command}: {row.code}, {row.said}" for row in rows if not row.right] == []
    ran = {verb_path(row.command.split()) for row in rows}
    assert shown() - ran - EXCUSED.keys() - EXCUSED_HERE.keys() == set()
