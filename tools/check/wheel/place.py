"""An installation of the wheel outside the checkout, and what is typed there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edgespec.core.errors import ConfigError

ROOT = Path(__file__).parents[3]
Versions = Literal["newest", "locked", "lowest"]
COMMAND_S = 600.0
START_S = 300.0
"""Time for one command, and for a daemon to get ready, on a busy machine."""


@dataclass
class Row:
    """One command, as it was typed."""

    place: str
    command: str
    code: int
    expected: tuple[int, ...]
    said: str

    @property
    def right(self) -> bool:
        """Whether it ended as it should."""
        return self.code in self.expected


@dataclass
class Place:
    """One user's machine: an environment, a home folder, and the rows of all commands."""

    name: str
    folder: Path
    """Its home and its current folder."""
    bin: Path
    cache: Path
    rows: list[Row] = field(repr=False)

    def run(self, *words: str, expected: int | tuple[int, ...] = 0, into: str = "") -> str:
        """Types a command and returns what it printed. `into`: a file for that."""
        done = self._typed(words)
        if into:
            (self.folder / into).write_text(done.stdout)
        printed = (done.stderr or done.stdout) if done.returncode else done.stdout
        lines = printed.strip().splitlines() or [""]
        command = " ".join(words) + (f" > {into}" if into else "")
        codes = (expected,) if isinstance(expected, int) else expected
        self.rows.append(Row(self.name, command, done.returncode, codes, lines[-1 if done.returncode else 0]))
        return done.stdout

    def json(self, *words: str) -> Any:
        """Types a command with `--json` and returns the last line that it printed."""
        printed = self.run(*words, "--json").splitlines()
        if printed:
            return json.loads(printed[-1])
        return {}

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A command that runs until the block ends, and then until SIGTERM; its messages are in a file of its name."""
        log = self.folder / f"{'-'.join(words[:3])}.log"
        with log.open("w") as messages, subprocess.Popen(
            self._command(words), cwd=self.folder, env=self._environment(), text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if "--json" in words else messages, stderr=messages,
        ) as process:  # fmt: skip
            try:
                yield process
                process.terminate()
                process.wait(COMMAND_S)
            finally:
                process.kill()
        said = log.read_text().strip().splitlines() or [""]
        self.rows.append(Row(self.name, " ".join(words), process.returncode, (0,), said[0]))

    def until(self, check: Callable[[], object], of: subprocess.Popen[str], what: str) -> None:
        """Returns as soon as `check` is true. Raises ConfigError after START_S, or when the process has ended."""
        limit = time.monotonic() + START_S
        while not check():
            if time.monotonic() > limit or of.poll() is not None:
                raise ConfigError(f"{what} failed; the logs are in {self.folder} (--keep).")
            time.sleep(0.5)

    def quietly(self, *words: str) -> Any:
        """The JSON that a command prints; None if it fails. Not a row."""
        done = self._typed([*words, "--json"])
        if done.returncode == 0:
            return json.loads(done.stdout)
        return None

    def _typed(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(words), cwd=self.folder, env=self._environment(), text=True, timeout=COMMAND_S,
            stdin=subprocess.DEVNULL, capture_output=True, check=False,
        )  # fmt: skip

    def _command(self, words: Sequence[str]) -> list[str]:
        return [str(self.bin / words[0]), *words[1:]]

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "PYTHON", "HF_"))}
        path = f"{self.bin}{os.pathsep}{kept.get('PATH', '')}"
        made = {"HOME": str(self.folder), "XDG_CACHE_HOME": str(self.cache), "PATH": path}

        # pip asks `rustc` for its version, and rustup's one writes into a home folder that has no rustup yet.
        return {"RUSTUP_HOME": str(Path.home() / ".rustup")} | kept | made


def build(folder: Path) -> Path:
    """The wheel of this checkout."""
    return _wheel(folder, ".", "edgespec-*.whl")


def add_lab(folder: Path, programs: Path) -> None:
    """Builds the wheel of the lab and installs it beside edgespec with its extras `gateway` and `torch`."""
    wheel = _wheel(folder, "./lab", "edgespec_lab-*.whl")
    _call([str(programs / "python"), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)])
    _call([str(programs / "python"), "-m", "pip", "check"])


def _wheel(folder: Path, source: str, name: str) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    _call([*command, "-w", str(folder), source])
    (wheel,) = folder.glob(name)
    return wheel


def install(wheel: Path, extra: str, versions: Versions, folder: Path) -> Path:
    """An environment with the wheel and one extra; returns the folder of its programs.

    That of the gateway has torch, too: the lab is installed there.
    """
    with_torch = extra == "gateway"
    wanted = "gateway,torch" if with_torch else extra
    _call([sys.executable, "-m", "venv", str(folder)])
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if versions == "locked":
        names = ["build", extra, "llama"]
        if with_torch:
            names += ["torch", "torch-cpu"]
        for name in names:
            _call([*pip, "--no-deps", "--require-hashes", "--no-build-isolation", "-r", f"requirements/{name}.txt"])
        _call([*pip, "--no-deps", str(wheel)])
    elif versions == "lowest":
        lowest = folder / "lowest.txt"
        lowest.write_text("\n".join(lower_bounds()))
        _call([*pip, "-c", str(lowest), f"{wheel}[{wanted}]"])
    else:
        _call([*pip, f"{wheel}[{wanted}]"])
    _call([str(folder / "bin/python"), "-m", "pip", "check"])
    return folder / "bin"


def lower_bounds() -> list[str]:
    """`NAME==VERSION` of every dependency in pyproject.toml that is not for development."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    listed = [*project["dependencies"], *(one for name, found in extras.items() if name != "dev" for one in found)]
    return sorted({re.sub(">=", "==", one) for one in listed})


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()[-2000:]}")
