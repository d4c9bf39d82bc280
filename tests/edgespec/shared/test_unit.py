"""`install-service` and `uninstall` of both command lines, with a systemctl that writes down how it is called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloud_gateway import __main__ as gateway
from edgespec import __main__ as worker
from edgespec.shared.unit import GATEWAY, WORKER, Unit

Main = Callable[[list[str]], int]
BOTH = pytest.mark.parametrize(("main", "unit"), [(worker.main, WORKER), (gateway.main, GATEWAY)])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def files(home: Path) -> set[Path]:
    return {path for path in home.rglob("*") if path.is_file()} - {home / "calls"}


@BOTH
def test_what_is_installed_is_uninstalled_again(
    home: Path, capsys: pytest.CaptureFixture[str], main: Main, unit: Unit
) -> None:
    before = files(home)
    assert main(["install-service", "--user"]) == 0
    installed = home / ".config/systemd/user" / unit.name
    assert files(home) - before == {installed}
    program, verb = unit.command.split()
    assert f"ExecStart={Path(sys.executable).with_name(program)} {verb}\n" in installed.read_text()
    assert main(["uninstall", "--user"]) == 0
    assert files(home) == before
    assert f"kept: {home}/.local/state/edgespec/{unit.role}" in capsys.readouterr().out
    calls = (home / "calls").read_text().split("\n")
    assert calls[:3] == [
        "--user daemon-reload",
        f"--user enable --now {unit.name}",
        f"--user disable --now {unit.name}",
    ]


@BOTH
def test_a_dry_run_shows_the_steps_and_does_nothing(
    home: Path, capsys: pytest.CaptureFixture[str], main: Main, unit: Unit
) -> None:
    before = files(home)
    assert main(["install-service", "--user", "--dry-run"]) == 0
    assert files(home) == before and not (home / "calls").exists()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["would"] * 3


@BOTH
def test_a_service_that_is_not_there_cannot_be_uninstalled(
    home: Path, capsys: pytest.CaptureFixture[str], main: Main, unit: Unit
) -> None:
    assert main(["uninstall", "--user"]) == 78
    assert "nothing to uninstall" in capsys.readouterr().err


@BOTH
def test_a_wrong_configuration_is_not_installed(
    home: Path, capsys: pytest.CaptureFixture[str], main: Main, unit: Unit
) -> None:
    (home / "wrong.toml").write_text("[daemon]\nstate_dri = 1\n")
    before = files(home)
    assert main(["install-service", "--user", "--config", str(home / "wrong.toml")]) == 78
    assert "did you mean `state_dir`?" in capsys.readouterr().err and files(home) == before


@pytest.mark.parametrize("user", [False, True])
@pytest.mark.parametrize("unit", [WORKER, GATEWAY])
def test_systemd_understands_both_variants(tmp_path: Path, unit: Unit, user: bool) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.fail("systemd-analyze is missing: install the Debian package systemd (apt-get install systemd)")
    made = tmp_path / unit.name
    text = unit.text(tmp_path / "a.toml", user=user)
    made.write_text(text.replace(str(unit.program), sys.executable))
    arguments = ["--user"] if user else []
    environment = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(
        [tool, *arguments, "verify", "--man=no", str(made)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("DynamicUser" in text, "DevicePolicy" in text) == (not user, not user)
    assert f"{unit.program} {unit.command.split()[1]} --config {tmp_path}/a.toml" in text
