"""Every family of tiny models, as folder and as GGUF file, paired with each other: accepted or refused at the start."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from tests.support.family_gguf import ARCHITECTURES, SENTENCEPIECE, pieces, write_gguf
from tests.support.tiny_families import VOCAB, make

from cloud_gateway.models.headers import FAMILIES
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.targets import check_models
from edgespec.core.errors import ModelError, TokenizerMismatch
from edgespec.shared.settings import overridden
from tests.support.tiny_tokenizer import tiny_tokenizer


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FAMILY and FAMILY.gguf of each."""
    root = tmp_path_factory.mktemp("families")
    for family in ARCHITECTURES:
        model = make(family, plain=True)
        write_gguf(root / f"{family}.gguf", model)
        model.save_pretrained(root / family)
        save_tokenizer(family, root / family)
    return root


def save_tokenizer(family: str, folder: Path) -> None:
    """The tokenizer that `write_gguf` writes, in the files of a folder."""
    if family not in SENTENCEPIECE:
        tiny_tokenizer(VOCAB).save(folder)
        return
    begin = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}
    vocabulary = {text: number for number, text in enumerate(pieces(VOCAB))}
    content = {"model": {"type": "BPE", "vocab": vocabulary, "merges": ["t h"]}, "post_processor": begin}
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "add_bos_token": True}))


def configured(target: Path, draft: Path, engine: str) -> GatewaySettings:
    settings = GatewaySettings()
    for key, value in (("target.model", target), ("local_draft.model", draft), ("target.engine", engine)):
        settings = overridden(settings, {key: str(value)})
    return settings


def test_folders_and_drafts_pair_where_their_tokenizer_is_one(made: Path) -> None:
    for target, draft in product(ARCHITECTURES, repeat=2):
        settings = configured(made / target, made / f"{draft}.gguf", "torch")
        if (target in SENTENCEPIECE) == (draft in SENTENCEPIECE):
            assert check_models(settings).engine == "torch", (target, draft)
        else:
            with pytest.raises(TokenizerMismatch, match=f"{draft}.gguf cannot draft for {target}"):
                check_models(settings)


@pytest.mark.parametrize("engine", ["torch", "llamacpp"])
def test_gguf_targets_and_drafts_all_pair(engine: str, made: Path) -> None:
    for target, draft in product(ARCHITECTURES, repeat=2):
        settings = configured(made / f"{target}.gguf", made / f"{draft}.gguf", engine)
        if engine == "torch" and not FAMILIES[target].torch_reads_gguf:
            with pytest.raises(ModelError, match='set `target.engine` to "llamacpp"'):
                check_models(settings)
        else:
            assert check_models(settings).engine == engine, (target, draft)
