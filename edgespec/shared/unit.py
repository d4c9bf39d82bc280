"""`install-service` and `uninstall` of both command lines: a shipped systemd unit, for the system or for one user."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.core.errors import ConfigError
from edgespec.shared import folders
from edgespec.shared.fields import AUTO_MODELS
from edgespec.shared.installed import shipped_text
from edgespec.shared.models import hub_place

_SYSTEM_ONLY = re.compile(
    r"(Wants|After|User|DynamicUser|StateDirectory\w*|CacheDirectory|RuntimeDirectory\w*|Environment|"
    r"CapabilityBoundingSet|AmbientCapabilities|Protect\w+|Private\w+|Device\w+|RemoveIPC)="
)
"""A user's systemd may not do these without privileges; folders are then those of the user."""
_USER_AND_FOLDERS = "DynamicUser|User|UMask|(?:State|Cache)Directory(?:Mode)?|Environment"
"""Settings that another program needs to write files for the service."""
_HIDDEN = tuple(map(Path, ("/home", "/root", "/run/user", "/tmp", "/var/tmp")))  # noqa: S108  nothing is written there
"""Folders that ProtectHome= and PrivateTmp= hide from the system's service."""

_PACKAGE = Path(__file__).resolve().parents[1]


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
        return Path(sys.executable).with_name(self.command.split()[0])

    def text(self, config: Path | None, *, user: bool) -> str:
        unit = shipped_text(self.name)
        words = [self.command.split()[1], *(["--config", str(config)] if config else [])]
        program = quoted(str(self.program)).replace("$$", "$")  # systemd expands variables in its arguments only
        command = " ".join([program, *map(quoted, words)])
        unit = re.sub(r"^ExecStart=.*$", lambda found: f"ExecStart={command}", unit, flags=re.MULTILINE)
        if not user:
            return unit

        lines = [line for line in unit.splitlines() if not _SYSTEM_ONLY.match(line) and not line.startswith("#")]
        return "\n".join(lines).replace("WantedBy=multi-user.target", "WantedBy=default.target") + "\n"

    def place(self, *, user: bool) -> Path:
        return (folders.expand("~/.config/systemd/user") if user else Path("/etc/systemd/system")) / self.name

    def install(self, config: Path | None, models: Sequence[str], *, user: bool, dry_run: bool) -> None:
        """Writes the unit, fetches the models that it lacks, and starts the service; prints each step.

        `models`: as configured. Raises ConfigError.
        """
        config = config.resolve() if config else None
        unit = self.place(user=user)
        content = self.text(config, user=user)
        if not user:
            for warning in _warnings(
                [self.program, Path(sys.executable).resolve(), _PACKAGE, *([config] if config else [])]
            ):
                print(f"warning: {warning}", file=sys.stderr)
        if dry_run:
            print(content, end="")
        _do(f"write {unit}", lambda: _write(unit, content), dry_run)
        _systemctl(user, dry_run, "daemon-reload")
        for model in dict.fromkeys(models):
            if model in AUTO_MODELS or (hub_place(model, Path()) and not Path(model).exists()):
                self._fetch(model, user, dry_run)
        _systemctl(user, dry_run, "enable", "--now", self.name)

    def _fetch(self, model: str, user: bool, dry_run: bool) -> None:
        """Fetches a model unless it is there: into the cache, and as the user, of the service."""
        command = [str(self.program.with_name("edgespec")), "models", "fetch", model]
        command = command if user else self.as_service(command)
        _do(f"run {' '.join(command)}", lambda: _run(command, shown=True), dry_run)

    def as_service(self, command: Sequence[str]) -> list[str]:
        """The command that runs another one as the user of the system's service, with its folders."""
        kept = re.findall(rf"^((?:{_USER_AND_FOLDERS})=.*)$", self.text(None, user=False), re.MULTILINE)
        return ["systemd-run", "--quiet", "--pipe", "--wait", *(f"--property={line}" for line in kept), *command]

    def uninstall(self, state_dir: str, *, user: bool, dry_run: bool) -> None:
        """Stops the service and removes the unit and, of the system's variant, its folders in /var/cache and /run.

        Prints each step. `state_dir`: as configured. Raises ConfigError.
        """
        unit = self.place(user=user)
        name = self.name.removesuffix(".service")
        if not unit.exists():
            raise ConfigError(
                f"{unit} does not exist, so there is nothing to uninstall. Of a program without a "
                f"service {folders.state_dir(self.role, state_dir)} and {folders.cache_dir()} are left; remove them."
            )

        _systemctl(user, dry_run, "disable", "--now", self.name)
        if not user:
            print(f"next: remove /var/cache/{name} (fetched and converted models) and /run/edgespec/{self.role}")
            _systemctl(user, dry_run, "clean", self.name)
        _do(f"remove {unit}", unit.unlink, dry_run)
        _systemctl(user, dry_run, "daemon-reload")
        if user or state_dir:
            state = folders.state_dir(self.role, state_dir)
        else:
            state = Path("/var/lib") / name
        print(f"kept: {state} (keys and pairings; remove it to leave nothing)")
        if user:
            print(f"kept: {folders.cache_dir()} (fetched and converted models)")


def quoted(word: str) -> str:
    """A word of a command line as systemd reads it (systemd.service(5)). Raises ConfigError."""
    if not word.isprintable():
        raise ConfigError(f"{word!r} has characters that a unit cannot hold: use a folder without them.")
    word = word.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[\w@%+=:,./$-]+", word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _warnings(paths: Sequence[Path]) -> Iterator[str]:
    """Sentences about what hinders the system's service, or lets others than root change what it runs."""
    for path in paths:
        if any(path.is_relative_to(hidden) for hidden in _HIDDEN):
            yield f"{path} is hidden from the service by ProtectHome= or PrivateTmp=: install elsewhere, as in /opt."
    for part in dict.fromkeys(one for path in paths for one in (path, *path.parents)):
        if _others_may_write(part):
            yield f"{part} can be changed by others than root, and with it what the service runs: make it root's own."


def _others_may_write(path: Path) -> bool:
    try:
        state = path.stat()
    except OSError:
        return False
    shared = state.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not state.st_mode & stat.S_ISVTX
    return state.st_uid != 0 or bool(shared)


WORKER = Unit("worker", "edgespec.service", "edgespec run")
GATEWAY = Unit("gateway", "cloud-gateway.service", "cloud-gateway serve")


def _systemctl(user: bool, dry_run: bool, *arguments: str) -> None:
    command = ["systemctl", *(["--user"] if user else []), *arguments]
    _do(f"run {' '.join(command)}", lambda: _run(command), dry_run)


def _run(command: list[str], *, shown: bool = False) -> None:
    """`shown`: what it prints goes to the terminal."""
    if shutil.which(command[0]) is None:
        raise ConfigError(f"{command[0]} is not installed: this machine does not run systemd.")
    done = subprocess.run(command, capture_output=not shown, text=True, check=False)
    if done.returncode:
        if shown:
            reason = "see above"
        else:
            reason = done.stderr.strip() or "no reason given"
        raise ConfigError(f"`{' '.join(command)}` failed: {reason}")


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
