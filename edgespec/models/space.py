"""Whether a disk has room for a model."""

from __future__ import annotations

import shutil
from pathlib import Path

from edgespec.core.errors import ModelError


def require_space(folder: Path, needed: int) -> None:
    """Raises ModelError where the disk of `folder` has fewer than `needed` bytes free."""
    if shutil.disk_usage(folder).free < needed:
        raise disk_full(folder, needed)


def disk_full(folder: Path, needed: int) -> ModelError:
    """The error for a disk that has fewer than `needed` bytes free."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free_mb = shutil.disk_usage(existing).free // 10**6
    return ModelError(
        f"The disk that holds {folder} has {free_mb} MB free, and {needed // 10**6 + 1} MB are needed; make room, "
        "or set XDG_CACHE_HOME to a folder on another disk."
    )
