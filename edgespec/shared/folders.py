"""Paths of files: the XDG base directories, and the folders that systemd passes to a service.

configuration   $XDG_CONFIG_HOME/edgespec/ROLE.toml
state           `daemon.state_dir`, else $STATE_DIRECTORY, else $XDG_STATE_HOME/edgespec/ROLE
control socket  in `daemon.state_dir` if that is set, else in $RUNTIME_DIRECTORY, else $XDG_RUNTIME_DIR/edgespec,
                else the state folder; always named ROLE.sock
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from edgespec.core.errors import ConfigError

Role = Literal["worker", "gateway"]
SYSTEM_RUNTIME = Path("/run/edgespec")
"""The folder of control sockets under systemd (`RuntimeDirectory=edgespec/ROLE`); commands try it last."""


def config_file(role: Role) -> Path:
    """The default configuration file; it need not exist."""
    return _xdg("XDG_CONFIG_HOME", ".config") / "edgespec" / f"{role}.toml"


def state_dir(role: Role, configured: str = "") -> Path:
    """The folder for keys and lists of paired machines; it need not exist. `configured` is `daemon.state_dir`."""
    if configured:
        return expand(configured)
    return _systemd("STATE_DIRECTORY") or _xdg("XDG_STATE_HOME", ".local/state") / "edgespec" / role


def cache_dir() -> Path:
    """The folder of what can be made or fetched again. A relative XDG_CACHE_HOME is ignored, as XDG requires."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else expand("~/.cache")) / "edgespec"


def socket_file(role: Role, configured: str) -> Path:
    """The control socket of a daemon of this role. `configured` is `daemon.state_dir`."""
    return _socket_folder(role, configured) / f"{role}.sock"


def find_socket(role: Role, configured: str) -> Path:
    """The control socket that a command connects to: the daemon's own, else that of the systemd unit."""
    usual = socket_file(role, configured)
    system = SYSTEM_RUNTIME / role / f"{role}.sock"
    if not exists(usual) and exists(system):
        return system
    return usual


def exists(path: Path) -> bool:
    """Whether the path exists, or is hidden from this user: opening it then fails with the reason."""
    try:
        return path.exists()
    except PermissionError:
        return True


def expand(path: str) -> Path:
    """A path from a configuration, with `~` replaced. Raises ConfigError if there is no home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"`{path}` cannot be resolved, because this user has no home folder.") from None


def _socket_folder(role: Role, configured: str) -> Path:
    if configured:
        return expand(configured)
    if folder := _systemd("RUNTIME_DIRECTORY"):
        return folder
    if os.environ.get("XDG_RUNTIME_DIR"):
        return _absolute("XDG_RUNTIME_DIR") / "edgespec"

    return state_dir(role)


def _systemd(variable: str) -> Path | None:
    """The first of the folders that systemd made for the service (systemd.exec(5): separated by colons)."""
    first = os.environ.get(variable, "").split(":")[0]
    if first:
        return Path(first)
    return None


def _xdg(variable: str, fallback: str) -> Path:
    if os.environ.get(variable):
        return _absolute(variable)
    return expand(f"~/{fallback}")


def _absolute(variable: str) -> Path:
    path = Path(os.environ[variable])
    if not path.is_absolute():
        raise ConfigError(f"${variable} is `{path}`, but must be an absolute path, or not be set.")
    return path
