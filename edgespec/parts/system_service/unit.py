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

_PACKAGE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Unit:
    """A service of this installation."""

    role: folders.Role
    template: Path
    """The shipped unit. Its name is that of the service; the state of the system's variant is in the folder of this
    name in /var/lib."""
    command: str
    """The program, and its verb."""

    @property
    def name(self) -> str:
        return self.template.name

    @property
    def program(self) -> Path:
        return Path(sys.executable).with_name(self.command.split()[0])

    def text(self, config: Path | None, *, user: bool) -> str:
        unit = self.template.read_text()
        words = self.command.split()[1:]
        if config is not None:
            words += ["--config", str(config)]

        program = quoted(str(self.program)).replace("$$", "$")  # systemd expands variables in its arguments only
        command = " ".join([program, *map(quoted, words)])
        unit = re.sub(r"^ExecStart=.*$", lambda found: f"ExecStart={command}", unit, flags=re.MULTILINE)
        if not user:
            return unit

        lines = [line for line in unit.splitlines() if not _SYSTEM_ONLY.match(line) and not line.startswith("#")]
        return "\n".join(lines).replace("WantedBy=multi-user.target", "WantedBy=default.target") + "\n"

    def place(self, *, user: bool) -> Path:
        """The file that systemd reads."""
        if user:
            return folders.expand("~/.config/systemd/user") / self.name

        return Path("/etc/systemd/system") / self.name

    def install(self, config: Path | None, models: Sequence[str], *, user: bool, dry_run: bool) -> None:
        """Writes the unit, fetches the models that it lacks, and starts the service; prints each step.

        `models`: as configured. Raises ConfigError.
        """
        # systemd starts the program in the root folder.
        if config is not None:
            config = config.resolve()

        unit = self.place(user=user)
        content = self.text(config, user=user)
        if not user:
            paths = [self.program, Path(sys.executable).resolve(), _PACKAGE]
            if config is not None:
                paths.append(config)
            for warning in _warnings(paths):
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
        if not user:
            command = self.as_service(command)

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

    places: list[Path] = []
    for path in paths:
        places.append(path)
        places += path.parents
    for place in dict.fromkeys(places):
        if _others_may_write(place):
            yield f"{place} can be changed by others than root, and with it what the service runs: make it root's own."


def _others_may_write(path: Path) -> bool:
    try:
        state = path.stat()
    except OSError:
        return False

    if state.st_uid != 0:
        return True

    # In a sticky folder others can only add files.
    for_others = state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return bool(for_others) and not state.st_mode & stat.S_ISVTX


WORKER = Unit("worker", Path(__file__).with_name("edgespec.service"), "edgespec run")


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
