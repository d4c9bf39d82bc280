"""The folders of configuration, state and control sockets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgespec.core.errors import ConfigError
from edgespec.shared import folders


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "STATE_DIRECTORY", "RUNTIME_DIRECTORY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.setattr(folders, "SYSTEM_RUNTIME", tmp_path / "run")


def test_without_any_variable_everything_lies_below_the_home_folder() -> None:
    assert folders.config_file("worker") == Path("/home/x/.config/edgespec/worker.toml")
    assert folders.state_dir("worker") == Path("/home/x/.local/state/edgespec/worker")
    assert folders.socket_file("gateway", "") == Path("/home/x/.local/state/edgespec/gateway/gateway.sock")


def test_the_xdg_variables_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/c")
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/r")
    assert folders.config_file("gateway") == Path("/c/edgespec/gateway.toml")
    assert folders.state_dir("gateway") == Path("/s/edgespec/gateway")
    assert folders.socket_file("gateway", "") == Path("/r/edgespec/gateway.sock")


def test_systemds_folders_win_over_xdg_and_a_configured_one_over_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/r")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/edgespec:/var/lib/other")
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/edgespec/worker")
    assert folders.state_dir("worker") == Path("/var/lib/edgespec")
    assert folders.socket_file("worker", "") == Path("/run/edgespec/worker/worker.sock")
    assert folders.state_dir("worker", "~/state") == Path("/home/x/state")
    assert folders.socket_file("worker", "/state") == Path("/state/worker.sock")


def test_a_relative_variable_is_an_error_and_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    with pytest.raises(ConfigError, match="XDG_STATE_HOME is `state`, but must be an absolute path"):
        folders.state_dir("worker")


def test_a_command_finds_the_users_daemon_first_and_then_the_systems(tmp_path: Path) -> None:
    own = tmp_path / "own"
    system = tmp_path / "run" / "worker"
    own.mkdir()
    system.mkdir(parents=True)
    assert folders.find_socket("worker", str(own)) == own / "worker.sock"
    (system / "worker.sock").touch()
    assert folders.find_socket("worker", str(own)) == system / "worker.sock"
    (own / "worker.sock").touch()
    assert folders.find_socket("worker", str(own)) == own / "worker.sock"


def test_a_folder_closed_to_this_user_counts_as_existing(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    tmp_path.chmod(0o755)
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(65534)
    try:
        assert folders.exists(closed / "worker.sock")
    finally:
        if was_root:
            os.seteuid(0)
    assert not folders.exists(tmp_path / "none")


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert folders.cache_dir() == Path.home() / ".cache" / "edgespec"
