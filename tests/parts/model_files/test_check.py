"""`cloud-gateway models`: whether a target and a draft pair, as a gateway's start decides it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloud_gateway.__main__ import main
from edgespec.core.errors import ModelError
from edgespec.shared.models import model_dir
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import make_tiny_target


@pytest.fixture
def target(home: Path) -> Path:
    return make_tiny_gguf(home / "target.gguf", seed=1)


@pytest.fixture
def folder(home: Path) -> Path:
    return make_tiny_target(home / "target")


def test_a_target_and_a_draft_that_pair_are_described(
    target: Path, draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "check", str(target), str(draft), "--json", "--set", "target.slots=2"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["pairs"], facts["engine"], facts["tokens"], facts["slots"]) == (True, "llamacpp", 64, 2)
    assert (facts["target"]["family"], facts["draft"]["family"]) == ("llama", "llama")
    assert facts["target"]["slot_mb"] == pytest.approx(2 * 2 * 2 * 8 * 2 * 4096 / 1e6)
    assert main(["models", "check", str(target), str(draft)]) == 0
    assert "They pair: one tokenizer of 64 tokens" in capsys.readouterr().out


def test_what_a_gateway_would_refuse_is_refused(folder: Path, draft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "target.engine=llamacpp", "--json"]
    assert main(["models", "check", str(folder), str(draft), *options]) == ModelError.exit_code
    assert "is a folder: name a GGUF file" in json.loads(capsys.readouterr().out)["reason"]


def test_a_folder_as_draft_is_refused(target: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "check", str(target), str(folder)]) == ModelError.exit_code
    assert "Drafts run in llama.cpp, which reads GGUF files" in capsys.readouterr().err


def test_the_list_has_what_gateway_toml_names(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_tiny_target(model_dir() / "owner--folder")
    (home / "config" / "edgespec").mkdir(parents=True)
    (home / "config" / "edgespec" / "gateway.toml").write_text(
        f'[target]\nmodel = "{model_dir()}/owner--folder"\n[local_draft]\nmodel = "{home}/gone.gguf"\n'
    )
    assert main(["models", "list", "--json"]) == 0
    configured = json.loads(capsys.readouterr().out)["configured"]
    assert [entry["fault"] for entry in configured] == [None, "it is not there"]
    assert configured[0]["path"] == str(model_dir() / "owner--folder")
