"""A random model of some tens of kilobytes, computed by llama.cpp, for tests of what parts serve over the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget
from cloud_gateway.models.target_model.load import load_vocabulary
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_tokenizer import EOS_ID


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", vocab=300, seed=1, sharpness=2.5)


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Any:
    vocabulary, _ = load_vocabulary(model)
    return vocabulary.tokenizer


@pytest.fixture(scope="module")
def target(model: Path) -> LlamaCppTarget:
    return LlamaCppTarget(model, eos=frozenset({EOS_ID}), slots=4, threads=1, context=1536, exact=True)
