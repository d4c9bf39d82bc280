"""`edgespec install-service` and `uninstall`, with a systemctl that writes down how it is called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec import __main__ as command
from edgespec.worker import unit


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


def test_what_is_installed_is_uninstalled_again(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(home)
    assert command.main(["install-service", "--user"]) == 0
    installed = home / ".config/systemd/user" / unit.NAME
    assert files(home) - before == {installed}
    assert f"ExecStart={unit.program()} run\n" in installed.read_text()
    assert command.main(["uninstall", "--user"]) == 0
    assert files(home) == before
    assert f"kept: {home}/.local/state/edgespec/worker" in capsys.readouterr().out
    calls = (home / "calls").read_text().split("\n")
    assert calls[:3] == [
        "--user daemon-reload",
        f"--user enable --now {unit.NAME}",
        f"--user disable --now {unit.NAME}",
    ]


def test_a_dry_run_shows_the_steps_and_does_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(home)
    assert command.main(["install-service", "--user", "--dry-run"]) == 0
    assert files(home) == before and not (home / "calls").exists()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["would"] * 3


def test_a_service_that_is_not_there_cannot_be_uninstalled(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["uninstall", "--user"]) == 78
    assert "nothing to uninstall" in capsys.readouterr().err


@pytest.mark.parametrize("user", [False, True])
def test_systemd_understands_both_variants(tmp_path: Path, user: bool) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.fail("systemd-analyze is missing: install the Debian package systemd (apt-get install systemd)")
    made = tmp_path / unit.NAME
    made.write_text(unit.text(Path(sys.executable), tmp_path / "worker.toml", user))
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
    assert ("DynamicUser" in made.read_text()) is not user
