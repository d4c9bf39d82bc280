"""Locks every package that set-up installs, by version and SHA-256: `python -m tools.lock [--upgrade [NAME ...]]`.

Writes requirements/*.txt with uv (`pip install uv`), which keeps the versions that are there unless it is to upgrade.
It uses the index, mirrors and folders of pip's settings. A version has the hashes of all its files that they and the
index alone show, so that one file serves every Python and processor: of a version that a mirror or a folder has, uv
lists the files there and no others. torch.txt has what the extra `torch` takes besides
gateway.txt; cuda.txt has torch as the public index has it, and torch-cpu.txt the CPU wheels of the same version: those
in pip's `find-links`, and those locked before.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from edgespec.core.errors import ConfigError
from edgespec_lab import verbs

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
ALL = ["worker", "gateway", "torch", "gpu", "shell", "dev"]
"""Resolved together, into dev.txt, so that a package has one version in all files."""
BUILD = "pip\nsetuptools\nscikit-build-core\ncmake\nninja\n"
"""What installs the others, and compiles llama.cpp."""
APART = {
    "llama": re.compile(r"llama-cpp-python"),
    "gpu": re.compile(r"nvidia-ml-py"),
    "man": re.compile(r"argparse-manpage"),
    "cuda": re.compile(r"torch|nvidia-(?!ml-py).*|cuda-.*|triton"),
}
"""Packages in a file of their own: compiled, optional, not as a wheel, and gigabytes of which the CPU wheel of torch
needs nothing."""
CPU = "torch-cpu"
LINT = ("ruff",)
"""What `make lint` installs, without the rest of dev.txt."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.lock", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--upgrade", nargs="*", metavar="NAME", help="take newer versions, of all or of these packages")
    parser.set_defaults(run=lock)
    return verbs.run(parser, argv)


def lock(options: argparse.Namespace) -> int:
    """Writes all files. Raises ConfigError."""
    if shutil.which("uv") is None:
        raise ConfigError("The program uv is missing: run `pip install uv`.")

    before: dict[str, str] = {}
    for file in sorted(FOLDER.glob("*.txt")):
        before |= entries(file.read_text()) if file.stem != CPU else {}
    upgrade = [f"--upgrade-package={name}" for name in options.upgrade or ()] or ["--upgrade"]
    dev = _compiled(ALL, before, upgrade if options.upgrade is not None else [])
    build = _compiled([], before | dev)
    public = _public_hashes([pinned(entry) for entry in (dev | build).values()])
    dev = {name: with_hashes(entry, public[name]) for name, entry in dev.items()}
    build = {name: with_hashes(entry, public[name]) for name, entry in build.items()}
    files = {"dev": dev, "build": build}
    files |= {extra: _compiled([extra], dev) for extra in ("worker", "gateway")}
    both = _compiled(["gateway", "torch"], dev)
    files["torch"] = {name: text for name, text in both.items() if name not in files["gateway"]}
    for name, found in files.items():
        _write(name, {one: text for one, text in found.items() if not any(p.fullmatch(one) for p in APART.values())})
    for name, pattern in APART.items():
        _write(name, {one: text for one, text in dev.items() if pattern.fullmatch(one)})
    _write("lint", {name: dev[name] for name in LINT})
    locked = FOLDER / f"{CPU}.txt"
    _write(CPU, {"torch": cpu_entry(pinned(dev["torch"]), locked.read_text() if locked.exists() else "")})
    return 0


def entries(text: str) -> dict[str, str]:
    """The entries of a requirements file by package, each with the lines of its hashes.

    Of the markers only those of processors stay: the others are Linux, CPython, and a few bytes on some versions of it.
    """
    found = re.findall(r"^[a-zA-Z0-9].*(?:\n +.*)*", text, re.MULTILINE)
    found = [re.sub(r" ;(?!.*platform_machine)[^\n\\]*", " ", entry).replace("  \\", " \\", 1) for entry in found]
    return {re.split(r"[^\w.-]", entry)[0]: entry for entry in found}


def pinned(entry: str) -> str:
    """`NAME==VERSION` of an entry."""
    return re.split(r"[ ;\\]", entry)[0]


def with_hashes(entry: str, hashes: Collection[str]) -> str:
    """The entry with these hashes, too, in order."""
    head = re.split(r" *\\\n", entry)[0]
    all_hashes = sorted({*hashes, *hashes_of(entry)})
    return " \\\n".join([head, *(f"    --hash={one}" for one in all_hashes)])


def hashes_of(entry: str) -> list[str]:
    return re.findall(r"sha256:\w+", entry)


def cpu_entry(torch: str, before: str) -> str:
    """The entry of torch's CPU wheels: those of this NAME==VERSION in pip's `find-links`, and those in `before`."""
    version = torch.partition("==")[2]
    folders = map(Path, pip_setting("find-links").split())
    wheels = [file for folder in folders for file in folder.glob(f"torch-{version}+cpu-*.whl")]
    hashes = {f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}" for file in wheels}
    if f"{torch}+cpu " in before:
        hashes.update(hashes_of(before))
    return with_hashes(f"{torch}+cpu", hashes)


def _compiled(extras: Sequence[str], keep: Mapping[str, str], options: Sequence[str] = ()) -> dict[str, str]:
    """What uv resolves these extras to, with `keep` where that is possible; without extras, the build's tools."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.txt"
        out.write_text("".join(f"{entry}\n" for entry in keep.values()))
        options = ["--output-file", str(out), *options, *(f"--extra={extra}" for extra in extras)]
        source = "pyproject.toml" if extras else "-"
        _uv([*options, source], BUILD, pip_for_uv())
        return entries(out.read_text())


def _public_hashes(pins: Sequence[str]) -> dict[str, list[str]]:
    """The hashes of all files that the index has of these NAME==VERSION, without mirrors and folders, by package."""
    index = pip_setting("index-url")
    environment = os.environ | ({"UV_DEFAULT_INDEX": index} if index else {})
    printed = _uv(["--no-deps", "-"], "\n".join(pins), environment)
    return {name: hashes_of(entry) for name, entry in entries(printed).items()}


def _uv(options: Sequence[str], requirements: str, environment: Mapping[str, str]) -> str:
    """What `uv pip compile` prints of requirements on its standard input. Raises ConfigError."""
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes", "--no-annotate", "--no-header"]
    done = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        input=requirements,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise ConfigError(f"uv found no versions that fit together: {done.stderr.strip()}")

    return done.stdout


def pip_for_uv() -> dict[str, str]:
    """The environment with uv's settings, from pip's."""
    index = pip_setting("index-url")
    extra = pip_setting("extra-index-url")
    found = {"UV_DEFAULT_INDEX": index, "UV_INDEX": extra, "UV_INDEX_STRATEGY": "unsafe-best-match"}
    return os.environ | {name: value for name, value in found.items() if value}


def pip_setting(key: str) -> str:
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(rf"^[\w:.-]+\.{key}='(.*)'$", listed, re.MULTILINE)
    return " ".join(dict.fromkeys(" ".join(found).split()))


def _write(name: str, found: Mapping[str, str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    lines = ["# Written by `python -m tools.lock` (docs/dependencies.md).", *(found[one] for one in sorted(found)), ""]
    (FOLDER / f"{name}.txt").write_text("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
