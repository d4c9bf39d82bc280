"""SHA-256 of model files, remembered by size and time of the last change: 16 GB take half a minute to hash.

They are kept in `$XDG_CACHE_HOME/edgespec/digests.json`. A file that was written in place within one tick of the file
system's clock, to the same size, would keep its old digest; downloads and conversions replace files.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from edgespec.core.errors import ModelError
from edgespec.shared.folders import cache_dir

MIN_BYTES = 16 << 20
"""Smaller files are hashed each time, which takes some milliseconds."""
MAX_FILES = 200
"""Remembered; the oldest are forgotten."""


def model_digest(path: Path) -> bytes:
    """SHA-256 of a file's content. Raises ModelError if it cannot be read."""
    try:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            mark = [state.st_size, state.st_mtime_ns, state.st_ino]
            key = str(path.resolve())
            if state.st_size < MIN_BYTES:
                return hashlib.file_digest(file, "sha256").digest()
            known = _remembered().get(key)
            if isinstance(known, list) and known[:3] == mark:
                return bytes.fromhex(known[3])
            digest = hashlib.file_digest(file, "sha256").digest()
            if os.fstat(file.fileno()).st_mtime_ns == state.st_mtime_ns:
                _remember(key, [*mark, digest.hex()])
            return digest
    except OSError as error:
        raise ModelError(
            f"The model file {path} cannot be read ({error.strerror or error}); check its path."
        ) from error


def _remembered() -> dict[str, object]:
    try:
        found = json.loads(_file().read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(key: str, entry: list[int | str]) -> None:
    """Two processes may lose one another's entry, and a cache that cannot be written costs time only."""
    known = _remembered()
    known.pop(key, None)
    known[key] = entry
    newest = dict(list(known.items())[-MAX_FILES:])
    with suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=_file().parent, prefix=".digests-", delete=False) as part:
            json.dump(newest, part)
        Path(part.name).replace(_file())


def _file() -> Path:
    return cache_dir() / "digests.json"
