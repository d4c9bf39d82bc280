"""`cloud-gateway models check` with a target in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloud_gateway.__main__ import main
from edgespec.core.errors import ModelError, TokenizerMismatch
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import make_tiny_target
from tests.support.verbs import needs_verb


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("CACHE", "CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{variable}_HOME", str(tmp_path / variable.lower()))
    return tmp_path


@pytest.fixture
def draft(home: Path) -> Path:
    return make_tiny_gguf(home / "draft.gguf")


@pytest.fixture
def target(home: Path) -> Path:
    return make_tiny_target(home / "target")


@needs_verb("models")
def test_a_folder_and_a_gguf_draft_that_pair_are_described(
    target: Path, draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "check", str(target), str(draft), "--json", "--set", "target.slots=2"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["pairs"], facts["engine"], facts["tokens"], facts["slots"]) == (True, "torch", 64, 2)
    assert (facts["target"]["family"], facts["draft"]["family"]) == ("llama", "llama")
    assert facts["target"]["slot_mb"] == pytest.approx(2 * 2 * 2 * 8 * 8 * 4096 / 1e6)
    assert main(["models", "check", str(target), str(draft)]) == 0
    assert "They pair: one tokenizer of 64 tokens" in capsys.readouterr().out


@needs_verb("models")
def test_a_pair_of_two_tokenizers_is_refused_as_at_the_start(
    target: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_tiny_gguf(home / "other.gguf", vocab=80)
    assert main(["models", "check", str(target), str(other)]) == TokenizerMismatch.exit_code
    assert "its tokenizer has 80 tokens instead of 64" in capsys.readouterr().err
    assert main(["models", "check", str(target), str(other), "--json"]) == TokenizerMismatch.exit_code
    refused = json.loads(capsys.readouterr().out)
    assert refused["pairs"] is False and "80 tokens" in refused["reason"]


@needs_verb("models")
def test_a_gpu_that_is_not_there_is_refused(target: Path, draft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "target.device=cuda:9", "--json"]
    assert main(["models", "check", str(target), str(draft), *options]) == ModelError.exit_code
    reason = json.loads(capsys.readouterr().out)["reason"]
    assert "there is no CUDA device here" in reason or "CUDA devices here" in reason or "CUDA device here" in reason
