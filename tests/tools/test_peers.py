"""`tools.peers`: what the build needs, what it unpacks, and how it shows that it is alive. Nothing is built here."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from edgespec.core.errors import ModelError
from tools import peers


def archive(folder: Path, *names: str) -> Path:
    path = folder / "package.tar.gz"
    with tarfile.open(path, "w:gz") as packed:
        for name in names:
            packed.addfile(tarfile.TarInfo(name), io.BytesIO())
    return path


def test_only_the_source_of_llama_cpp_is_unpacked(tmp_path: Path) -> None:
    packed = archive(tmp_path, "p-1/setup.py", "p-1/vendor/llama.cpp/CMakeLists.txt", "p-1/vendor/other/x")
    source = peers.extract(packed, tmp_path / "out")
    assert [one.name for one in source.iterdir()] == ["CMakeLists.txt"]
    assert not (tmp_path / "out/p-1/setup.py").exists() and not (tmp_path / "out/p-1/vendor/other").exists()


def test_archives_that_do_not_fit_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no source of llama.cpp"):
        peers.extract(archive(tmp_path, "p-1/setup.py"), tmp_path / "out")
    (tmp_path / "cut.tar.gz").write_bytes(b"\x1f\x8b\x08cut")
    with pytest.raises(ModelError, match="cannot be unpacked"):
        peers.extract(tmp_path / "cut.tar.gz", tmp_path / "out")
