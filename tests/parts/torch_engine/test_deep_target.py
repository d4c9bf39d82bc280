"""A deep target is made in both formats if it is the same function; torch computes the one that is a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.core.errors import ModelError
from edgespec_lab import deep_target
from edgespec_lab.deep_target import make
from tests.support.tiny_gguf import make_tiny_gguf


def test_a_target_that_is_another_function_never_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("edgespec_lab.deep_target.ZERO_GGUF", frozenset({"ffn_down.weight"}))
    source = make_tiny_gguf(tmp_path / "tiny.gguf", vocab=320)
    with pytest.raises(ModelError, match="not the same function"):
        make(source, tmp_path / "out", 2)
    assert list((tmp_path / "out").iterdir()) == []


def test_make_writes_both_forms_and_counts_what_it_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(deep_target, "TOKENS", 4)
    found = make(make_tiny_gguf(tmp_path / "tiny.gguf", vocab=320), tmp_path / "out", 2)
    assert found.equal_tokens == found.tokens > 0
    assert found.max_difference == found.gguf_max_difference == 0.0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["tiny.deep2", "tiny.deep2.gguf"]
