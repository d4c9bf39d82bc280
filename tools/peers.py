"""Builds llama.cpp's own server, the peer of `python -m tools.bench live`: `python -m tools.peers build`, then `path`.

The source is that of the pinned llama-cpp-python, so that peer and gateway compute with the same kernels. It is built
at the lowest priority in `$XDG_CACHE_HOME/edgespec/peers`, and only the program is kept.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgespec.core.errors import ModelError
from edgespec.models.space import require_space
from edgespec.shared import models
from edgespec_lab import verbs

LOCK = Path(__file__).parents[1] / "requirements" / "llama.txt"
PACKAGE = "llama-cpp-python"
TARGET = "llama-server"
COMMAND = "python -m tools.peers build"
TOOLS = {"cmake": "cmake", "c++": "build-essential"}
"""What the build needs, and Debian's package of it."""
OFF = (
    "LLAMA_CURL",
    "LLAMA_OPENSSL",
    "LLAMA_BUILD_UI",
    "LLAMA_BUILD_TESTS",
    "LLAMA_BUILD_EXAMPLES",
    "BUILD_SHARED_LIBS",
)
INCLUDED = Path(__file__).with_name("llama.cmake")
"""What set-up too gives CMake: no AMX from a compiler that configures its tiles wrongly."""
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    f"-DCMAKE_PROJECT_INCLUDE={INCLUDED}",
    *(f"-D{name}=OFF" for name in OFF),
)
SPACE_BYTES = 800_000_000
"""Source, objects and program of version 0.3.36 take 500 MB."""


def version() -> str:
    """The pinned version of llama-cpp-python."""
    (line,) = (line for line in LOCK.read_text().splitlines() if line.startswith(f"{PACKAGE}=="))
    return line.partition("==")[2].split()[0]


def program() -> Path:
    """Where the built server is, whether or not it is there."""
    return models.model_dir().with_name("peers") / f"{TARGET}-{version()}"


def llama_server() -> Path:
    """The built server. Raises ModelError with the command that builds it."""
    if not os.access(program(), os.X_OK):
        raise ModelError(f"llama.cpp's server has not been built; run `{COMMAND}` (6 to 30 minutes, once).")
    return program()


def missing_tools() -> list[str]:
    """Programs that the build needs and that are not installed."""
    return [name for name in TOOLS if shutil.which(name) is None]


def build(jobs: int) -> Path:
    """Downloads the source, builds the server and returns its path. Raises ModelError."""
    if missing := missing_tools():
        packages = " ".join(TOOLS[name] for name in missing)
        raise ModelError(
            f"The build needs {' and '.join(missing)}, not installed here (Debian, Ubuntu: apt-get install {packages})."
        )

    folder = program().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        require_space(folder, SPACE_BYTES)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as scratch:
            source = extract(download(Path(scratch)), Path(scratch))
            made = Path(scratch) / "build"
            _run(["cmake", "-S", str(source), "-B", str(made), *OPTIONS], "configuring")
            _run(["cmake", "--build", str(made), "--target", TARGET, "-j", str(jobs)], "compiling (6 to 30 minutes)")
            (made / "bin" / TARGET).replace(program())
    except OSError as error:
        raise ModelError(f"The peer cannot be built in {folder}: {error.strerror or error}.") from error

    return program()


def download(folder: Path) -> Path:
    """The source archive of the pinned package, by pip and its settings. Raises ModelError."""
    wanted = f"{PACKAGE}=={version()}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE, "--no-input"]
    command += ["--disable-pip-version-check", "--no-build-isolation", "--dest", str(folder)]
    command += ["--require-hashes", "--requirement", str(LOCK)]
    _run(command, f"downloading the source of {wanted} (77 MB)")
    archives = list(folder.glob("*.tar.gz"))
    if len(archives) != 1:
        raise ModelError(f"pip delivered no source archive of {wanted}; check pip's index settings and run it again.")

    return archives[0]


def extract(archive: Path, folder: Path) -> Path:
    """Unpacks llama.cpp from the archive of llama-cpp-python; returns its folder. Raises ModelError."""
    try:
        with tarfile.open(archive) as packed:
            wanted = [one for one in packed if one.name.split("/")[1:3] == ["vendor", "llama.cpp"]]
            packed.extractall(folder, wanted, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise ModelError(f"{archive.name} cannot be unpacked ({error}); run `{COMMAND}` again.") from error
    found = [one for one in folder.glob("*/vendor/llama.cpp") if (one / "CMakeLists.txt").is_file()]
    if not found:
        raise ModelError(f"{archive.name} has no source of llama.cpp; check that {LOCK.name} pins a known version.")

    return found[0]


def _run(command: Sequence[str], what: str) -> None:
    print(what, flush=True)
    done = subprocess.run(
        ["nice", "-n", "19", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        last = "\n".join(done.stdout.splitlines()[-15:])
        raise ModelError(f"The build of {TARGET} failed while {what}; its last lines:\n{last}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    building = verbs.Verb("build", "build the server unless it is there (6 to 30 minutes)", _build_options, _build)
    path = verbs.Verb("path", "print where it is", lambda parser: None, _path)
    return verbs.run(verbs.command("tools.peers", [building, path], __doc__ or ""), argv)


def _build_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=2, choices=range(1, 65), metavar="N", help="compilers at once")
    parser.add_argument("--force", action="store_true", help="build it again when it is there")


def _build(options: argparse.Namespace) -> int:
    if options.force or not program().is_file():
        build(options.jobs)
    return _path(options)


def _path(_: argparse.Namespace) -> int:
    print(llama_server())
    return 0


if __name__ == "__main__":
    sys.exit(main())
