"""`edgespec install-service` and `uninstall`: the systemd unit of this worker, for the system or for one user."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from edgespec.core.errors import ConfigError
from edgespec.shared import folders

NAME = "edgespec.service"
SHIPPED = Path(__file__).parents[2] / "systemd" / NAME
_SYSTEM_ONLY = re.compile(
    r"(Wants|After|User|DynamicUser|StateDirectory\w*|CacheDirectory|RuntimeDirectory\w*|Environment|"
    r"CapabilityBoundingSet|AmbientCapabilities|Protect\w+|Private\w+|DevicePolicy|RemoveIPC)="
)
"""A user's systemd may not do these without privileges; folders are then those of the user."""


def text(program: Path, config: Path | None, user: bool) -> str:
    """The unit for this program. Raises ConfigError where the unit was not shipped with this installation."""
    try:
        unit = SHIPPED.read_text()
    except OSError:
        raise ConfigError(f"{SHIPPED} is missing; install from a checkout, which has the folder systemd.") from None
    command = f"{program} run" + (f" --config {config}" if config else "")
    unit = re.sub(r"^ExecStart=.*$", lambda found: f"ExecStart={command}", unit, flags=re.MULTILINE)
    if not user:
        return unit
    lines = [line for line in unit.splitlines() if not _SYSTEM_ONLY.match(line) and not line.startswith("#")]
    return "\n".join(lines).replace("WantedBy=multi-user.target", "WantedBy=default.target") + "\n"


def place(user: bool) -> Path:
    """Where the unit belongs."""
    return folders.expand("~/.config/systemd/user") / NAME if user else Path("/etc/systemd/system") / NAME


def program() -> Path:
    """The command `edgespec` of this installation."""
    return Path(sys.executable).with_name("edgespec")


def install(unit: Path, content: str, user: bool, dry_run: bool) -> None:
    """Writes the unit and starts the service; prints each step. Raises ConfigError."""
    _do(f"write {unit}", lambda: _write(unit, content), dry_run)
    _systemctl(user, dry_run, "daemon-reload")
    _systemctl(user, dry_run, "enable", "--now", NAME)


def uninstall(unit: Path, state: str, user: bool, dry_run: bool) -> None:
    """Stops the service and removes the unit; prints each step. Raises ConfigError."""
    if not unit.exists():
        raise ConfigError(f"{unit} does not exist, so there is nothing to uninstall.")
    _systemctl(user, dry_run, "disable", "--now", NAME)
    _do(f"remove {unit}", unit.unlink, dry_run)
    _systemctl(user, dry_run, "daemon-reload")
    print(f"kept: {state} (keys and pairings; remove it to leave nothing)")


def _systemctl(user: bool, dry_run: bool, *arguments: str) -> None:
    command = ["systemctl", *(["--user"] if user else []), *arguments]
    _do(" ".join(command), lambda: _run(command), dry_run)


def _run(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        raise ConfigError("systemctl is not installed: this machine does not run systemd.")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"`{' '.join(command)}` failed: {done.stderr.strip() or 'no reason given'}")


def _write(unit: Path, content: str) -> None:
    try:
        unit.parent.mkdir(parents=True, exist_ok=True)
        unit.write_text(content)
    except OSError as error:
        raise ConfigError(f"{unit} cannot be written ({error.strerror}); run this as root, or with --user.") from None


def _do(what: str, step: Callable[[], object], dry_run: bool) -> None:
    print(f"would {what}" if dry_run else what)
    if not dry_run:
        step()
