"""Two models with different tokenizers: what a gateway loads and says of them, and how often the draft is right."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from cloud_gateway.__main__ import main as gateway_main
from cloud_gateway.parts import text_translation
from cloud_gateway.parts.text_translation.by_text import ByText
from cloud_gateway.parts.text_translation.draft import MakeTranslatedDraft
from cloud_gateway.process import config
from cloud_gateway.process.targets import LlamaCppEngine, check_models, draft_class
from edgespec.core.errors import TokenizerMismatch
from edgespec.shared.hf_vocabulary import hf_vocabulary
from edgespec.shared.settings import overridden
from edgespec.shared.vocabfiles import Vocabulary
from edgespec_lab.pairs import main
from tests.support.families import ARCHITECTURES, make, write_gguf
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import make_tiny_target
from tests.support.verbs import needs_verb

PARTS = [text_translation.PART]


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return make_tiny_gguf(tmp_path / "draft.gguf")


def configured(target: Path, draft: Path) -> config.GatewaySettings:
    """A gateway with this part and these models."""
    return overridden(config.schema(PARTS)(), {"target.model": str(target), "local_draft.model": str(draft)})


def test_a_local_draft_of_another_vocabulary_is_translated(tmp_path: Path, draft: Path) -> None:
    other = make_tiny_gguf(tmp_path / "other.gguf", vocab=80)
    check_models(configured(draft, other))
    assert isinstance(draft_class(PARTS, LlamaCppEngine(), draft, other), MakeTranslatedDraft)


def test_gguf_targets_and_drafts_all_pair(tmp_path: Path) -> None:
    for family in ARCHITECTURES:
        write_gguf(tmp_path / f"{family}.gguf", make(family, plain=True))
    for target, draft in product(ARCHITECTURES, repeat=2):
        settings = configured(tmp_path / f"{target}.gguf", tmp_path / f"{draft}.gguf")
        assert check_models(settings).engine == "llamacpp", (target, draft)


class Folders(LlamaCppEngine):
    """An engine for folders."""

    def vocabulary(self, model: Path) -> Vocabulary:
        return hf_vocabulary(model)


def test_a_file_that_only_its_engine_reads_is_not_offered_to_workers(tmp_path: Path) -> None:
    table = tmp_path / "words.table"
    table.write_text("the red fox")
    assert not ByText().offer(table).sends
    assert ByText().offer(make_tiny_gguf(tmp_path / "target.gguf")).sends


def test_a_folder_has_no_tokenizer_to_translate(tmp_path: Path) -> None:
    target = make_tiny_target(tmp_path / "target")
    other = make_tiny_gguf(tmp_path / "other.gguf", vocab=80)
    with pytest.raises(TokenizerMismatch, match="80 tokens instead of 64, and translation needs a target in a GGUF"):
        draft_class(PARTS, Folders(), target, other)


@needs_verb("models")
def test_two_gguf_files_of_two_tokenizers_are_translated(
    tmp_path: Path, draft: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("CACHE", "CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{variable}_HOME", str(tmp_path / variable.lower()))
    other = make_tiny_gguf(tmp_path / "other.gguf", vocab=80)
    options = ["--set", "target.context=512"]
    assert gateway_main(["models", "check", str(other), str(draft), *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["method"].startswith("translated, as a worker's draft")


def test_a_translated_draft_is_measured(tmp_path: Path, draft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_tiny_gguf(tmp_path / "other.gguf", vocab=80)
    assert main([str(other), str(draft), "--prompts", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 48
