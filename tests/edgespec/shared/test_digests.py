"""Digests of model files are remembered by size and time, and never outlive a change of the file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from edgespec.core.errors import ModelError
from edgespec.shared import models
from edgespec.shared.folders import cache_dir
from edgespec.shared.models import model_digest


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(models, "MIN_BYTES", 4)
    (tmp_path / "model.gguf").write_bytes(b"weights")
    return tmp_path / "model.gguf"


def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the files that are read from now on."""
    count: list[int] = []
    real = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *args: count.append(1) or real(*args))
    return count


def remembered() -> list[Path]:
    return list((cache_dir() / "digests").glob("*"))


def test_a_file_is_hashed_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, count = hashlib.sha256(b"weights").digest(), hashed(monkeypatch)
    assert model_digest(file) == model_digest(file) == expected
    assert len(count) == 1


def test_a_changed_file_is_hashed_again(file: Path) -> None:
    before = model_digest(file)
    state = file.stat()
    file.write_bytes(b"WEIGHTS")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert model_digest(file) == hashlib.sha256(b"WEIGHTS").digest() != before
    other = file.with_name("other")
    other.write_bytes(b"another")
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    other.replace(file)  # the same size and time in another file
    assert model_digest(file) == hashlib.sha256(b"another").digest()


@pytest.mark.parametrize("content", ["", "{"])
def test_a_damaged_memory_is_made_again(content: str, file: Path) -> None:
    expected = model_digest(file)
    (memory,) = remembered()
    memory.write_text(content)
    assert model_digest(file) == expected == memory.read_bytes()


def test_a_cache_that_cannot_be_written_costs_time_only(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert model_digest(file) == hashlib.sha256(b"weights").digest()


def test_small_files_are_not_remembered(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MIN_BYTES", 8)
    model_digest(file)
    assert not remembered()


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere cannot be read \(No such file or directory\)"):
        model_digest(tmp_path / "nowhere")
