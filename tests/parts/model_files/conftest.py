"""Folders and models of one test: nobody's cache, settings or state are read or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_gguf import make_tiny_gguf


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("CACHE", "CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{variable}_HOME", str(tmp_path / variable.lower()))
    return tmp_path


@pytest.fixture
def draft(home: Path) -> Path:
    return make_tiny_gguf(home / "draft.gguf")
