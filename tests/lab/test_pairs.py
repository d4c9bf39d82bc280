"""`python -m edgespec_lab.pairs`: how often a draft model is right for a target."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec_lab.pairs import main
from tests.support.tiny_gguf import make_tiny_gguf


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return make_tiny_gguf(tmp_path / "draft.gguf")


def test_a_model_is_always_right_for_itself(draft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(draft), str(draft), "--prompts", "1"]) == 0
    assert "a draft token is right 1.00 of" in capsys.readouterr().out
