"""`install-service` and `uninstall` of both command lines: a shipped systemd unit, for the system or for one user."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgespec.core.errors import ConfigError
from edgespec.shared import folders
from edgespec.shared.installed import shipped_text

_SYSTEM_ONLY = re.compile(
    r"(Wants|After|User|DynamicUser|StateDirectory\w*|CacheDirectory|RuntimeDirectory\w*|Environment|"
    r"CapabilityBoundingSet|AmbientCapabilities|Protect\w+|Private\w+|Device\w+|RemoveIPC)="
)
"""A user's systemd may not do these without privileges; folders are then those of the user."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A service of this installation."""

    role: folders.Role
    name: str
    """The file's name; its state in the system's variant is the folder of this name in /var/lib."""
    command: str
    """The program, and its verb."""

    @property
    def program(self) -> Path:
        """The program of this installation."""
        return Path(sys.executable).with_name(self.command.split()[0])

    def text(self, config: Path | None, *, user: bool) -> str:
        """The unit. Raises ConfigError."""
        unit = shipped_text(self.name)
        command = f"{self.program} {self.command.split()[1]}" + (f" --config {config}" if config else "")
        unit = re.sub(r"^ExecStart=.*$", lambda found: f"ExecStart={command}", unit, flags=re.MULTILINE)
        if not user:
            return unit
        lines = [line for line in unit.splitlines() if not _SYSTEM_ONLY.match(line) and not line.startswith("#")]
        return "\n".join(lines).replace("WantedBy=multi-user.target", "WantedBy=default.target") + "\n"

    def place(self, *, user: bool) -> Path:
        """Where the unit belongs."""
        return (folders.expand("~/.config/systemd/user") if user else Path("/etc/systemd/system")) / self.name

    def install(self, config: Path | None, *, user: bool, dry_run: bool) -> None:
        """Writes the unit and starts the service; prints each step. Raises ConfigError."""
        unit, content = self.place(user=user), self.text(config.resolve() if config else None, user=user)
        _do(f"write {unit}", lambda: _write(unit, content), dry_run)
        _systemctl(user, dry_run, "daemon-reload")
        _systemctl(user, dry_run, "enable", "--now", self.name)

    def uninstall(self, state_dir: str, *, user: bool, dry_run: bool) -> None:
        """Stops the service and removes the unit and, of the system's variant, its folders in /var/cache and /run.

        Prints each step. `state_dir`: as configured. Raises ConfigError.
        """
        unit = self.place(user=user)
        if not unit.exists():
            raise ConfigError(f"{unit} does not exist, so there is nothing to uninstall.")
        _systemctl(user, dry_run, "disable", "--now", self.name)
        if not user:
            _systemctl(user, dry_run, "clean", self.name)
        _do(f"remove {unit}", unit.unlink, dry_run)
        _systemctl(user, dry_run, "daemon-reload")
        system = Path("/var/lib") / self.name.removesuffix(".service")
        state = folders.state_dir(self.role, state_dir) if user or state_dir else system
        print(f"kept: {state} (keys and pairings; remove it to leave nothing)")


WORKER = Unit("worker", "edgespec.service", "edgespec run")
GATEWAY = Unit("gateway", "cloud-gateway.service", "cloud-gateway serve")


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
