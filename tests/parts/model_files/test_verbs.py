"""The verbs of `edgespec models`: what they list, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgespec.__main__ import main
from edgespec.core.errors import ConfigError
from edgespec.shared.models import model_dir
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import make_tiny_target


def test_the_list_has_what_is_here_and_what_is_configured(
    home: Path, draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tiny_gguf(model_dir() / "own.gguf")
    make_tiny_gguf(model_dir() / "owner--name" / "file.gguf")
    make_tiny_target(model_dir() / "owner--folder")
    (home / "config" / "edgespec").mkdir(parents=True)
    (home / "config" / "edgespec" / "worker.toml").write_text(f'[draft]\nmodel = "{draft}"\n')
    assert main(["models", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    names = [str(Path(row["path"]).relative_to(model_dir())) for row in listed["models"]]
    assert names == ["own.gguf", "owner--folder", "owner--name/file.gguf"]
    assert all(row["mb"] > 0 for row in listed["models"])
    assert listed["configured"] == [{"key": "draft.model", "model": str(draft), "path": str(draft), "fault": None}]
    assert main(["models", "list"]) == 0
    assert "3 models" in capsys.readouterr().out


def test_a_pair_is_left_to_the_gateway_to_check(draft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "check", str(draft), str(draft)]) == ConfigError.exit_code
    assert f"run `cloud-gateway models check {draft} {draft}`" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"no model", b"GGUF\x03\0\0\0" + b"\xff" * 64])
def test_a_file_that_is_no_gguf_is_one_sentence_and_exit_code_66(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "broken.gguf"
    source.write_bytes(content)
    assert main(["models", "make", "--source", str(source), "--drop", "1", "--out", str(tmp_path / "out.gguf")]) == 66
    error = capsys.readouterr().err
    assert "broken.gguf" in error
    assert len(error.splitlines()) == 1
