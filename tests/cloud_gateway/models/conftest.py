"""A tokenizer of 280 byte tokens, and the grammars over it for a model whose embedding is padded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.models.grammar import Grammars
from cloud_gateway.models.target_model.load import load_tokenizer
from tests.support.tiny_tokenizer import EOS_ID, PADDED_VOCAB, tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer(280).save(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def grammars(tokenizer: Any) -> Grammars:
    return Grammars(tokenizer, PADDED_VOCAB, frozenset({EOS_ID}))
