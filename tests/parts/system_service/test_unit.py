"""`install-service` and `uninstall` of both command lines, with a systemctl that records how it is called."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloud_gateway import __main__ as gateway
from cloud_gateway.parts.system_service import gateway_unit
from edgespec import __main__ as worker
from edgespec.core.errors import ConfigError
from edgespec.parts.system_service.unit import WORKER, Unit, quoted
from tests.support.programs import require

GATEWAY = gateway_unit()
Main = Callable[[list[str]], int]
BOTH = pytest.mark.parametrize(("main", "unit"), [(worker.main, WORKER), (gateway.main, GATEWAY)])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    program.chmod(0o755)
    (program.parent / "systemd-run").write_text(f'#!/bin/sh\necho systemd-run "$@" >> {tmp_path}/calls\n')
    (program.parent / "systemd-run").chmod(0o755)
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
def test_a_dry_run_shows_the_unit_and_the_steps_and_does_nothing(
    home: Path, capsys: pytest.CaptureFixture[str], main: Main, unit: Unit
) -> None:
    before = files(home)
    assert main(["install-service", "--user", "--dry-run"]) == 0
    assert files(home) == before and not (home / "calls").exists()
    said = capsys.readouterr().out
    assert said.startswith(unit.text(None, user=True))
    steps = said.removeprefix(unit.text(None, user=True)).splitlines()
    assert [line.split()[:3] for line in steps] == [
        ["would", "write", str(unit.place(user=True))],
        ["would", "run", "systemctl"],
        ["would", "run", str(unit.program.with_name("edgespec"))],
        ["would", "run", "systemctl"],
    ]


@BOTH
def test_a_system_service_gets_its_model_as_its_own_user(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, main: Main, unit: Unit
) -> None:
    monkeypatch.setattr(Unit, "place", lambda unit, *, user: home / unit.name)
    assert main(["install-service"]) == 0
    reload, fetch, enable, _ = (home / "calls").read_text().split("\n")
    assert (reload, enable) == ("daemon-reload", f"enable --now {unit.name}")
    assert fetch.startswith("systemd-run ") and fetch.endswith(" models fetch auto:quantised")
    written = (home / unit.name).read_text().splitlines()
    wanted = ("DynamicUser=", "User=", "StateDirectory=", "CacheDirectory=", "Environment=")
    assert all(f"--property={line}" in fetch for line in written if line.startswith(wanted))
    assert main(["uninstall"]) == 0
    assert f"/var/cache/{unit.name.removesuffix('.service')} (fetched" in capsys.readouterr().out


def test_a_model_that_is_a_file_is_not_fetched(home: Path) -> None:
    (home / "own.toml").write_text(f'[draft]\nmodel = "{home}/draft.gguf"\n')
    assert worker.main(["install-service", "--user", "--config", str(home / "own.toml")]) == 0
    assert "models fetch" not in (home / "calls").read_text()


def test_a_system_service_that_cannot_see_its_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/home/lab/venv/bin/python")
    assert worker.main(["install-service", "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert "warning: /home/lab/venv/bin/edgespec is hidden from the service by ProtectHome=" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
def test_what_others_may_change_of_a_system_service_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own"
    others = tmp_path / "others"
    for folder in (own, others):
        (folder / "bin").mkdir(parents=True)
        (folder / "bin/edgespec").touch(mode=0o755)
    os.chown(others, 65534, 65534)
    (own / "bin/edgespec").chmod(0o775)
    for folder, named in ((own, own / "bin/edgespec"), (others, others)):
        monkeypatch.setattr(sys, "executable", str(folder / "bin/python"))
        assert worker.main(["install-service", "--dry-run"]) == 0
        assert f"warning: {named} can be changed by others than root" in capsys.readouterr().err


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


def verified(unit: Path, *arguments: str) -> tuple[int, str]:
    """Exit status and complaints of systemd's own reading of a unit."""
    tool = require("systemd-analyze")
    command = [tool, *arguments, "verify", "--man=no", str(unit)]
    environment = os.environ | {"XDG_RUNTIME_DIR": str(unit.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stderr


STRANGE = ["a b", "50%n", "$HOME", "${HOME}", "x;y", "ä ö", "x --set daemon.log_level=debug"]
"""Names of folders; quotes and backslashes in a program's path are refused by systemd."""


@pytest.mark.claim("a-path-in-a-unit-is-one-word")
@pytest.mark.parametrize("name", STRANGE)
def test_systemd_finds_a_program_in_a_folder_of_any_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "edgespec").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    made = tmp_path / WORKER.name
    made.write_text(WORKER.text(folder / "worker.toml", user=False))
    assert verified(made) == (0, "")


@pytest.mark.claim("a-path-in-a-unit-is-one-word")
@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("/etc/a.toml", "/etc/a.toml"),
        ("/etc/edge spec/a.toml", '"/etc/edge spec/a.toml"'),
        ("/srv/100%/$x", "/srv/100%%/$$x"),
        ('/srv/"\\', '"/srv/\\"\\\\"'),
    ],
)
def test_a_word_of_a_command_line_is_quoted_for_systemd(word: str, line: str) -> None:
    assert quoted(word) == line


@pytest.mark.claim("a-path-in-a-unit-is-one-word")
@pytest.mark.parametrize("name", ["x\nExecStartPre=+evil", "x\r", "x\x1b[31m", "x\u2028", "x\udc80"])
def test_a_path_with_control_characters_makes_no_unit(name: str, home: Path) -> None:
    before = files(home)
    with pytest.raises(ConfigError, match="has characters that a unit cannot hold"):
        WORKER.install(home / name / "worker.toml", [], user=True, dry_run=False)
    assert files(home) == before


@pytest.mark.parametrize("user", [False, True])
@pytest.mark.parametrize("unit", [WORKER, GATEWAY])
def test_systemd_understands_both_variants(tmp_path: Path, unit: Unit, user: bool) -> None:
    made = tmp_path / unit.name
    text = unit.text(tmp_path / "a.toml", user=user)
    made.write_text(text.replace(str(unit.program), sys.executable))
    assert verified(made, *(["--user"] if user else [])) == (0, "")
    assert ("DynamicUser" in text, "DevicePolicy" in text) == (not user, not user)
    assert f"{unit.program} {unit.command.split()[1]} --config {tmp_path}/a.toml" in text
