"""A tokenizer of 280 byte tokens, and the grammars over it for a model whose embedding is padded."""

from __future__ import annotations

from typing import Any

import pytest

from cloud_gateway.parts.structured_output.grammar import GuidedGrammars
from tests.support.tiny_tokenizer import EOS_ID, PADDED_VOCAB
from tests.support.tokenizers import byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def grammars(tokenizer: Any) -> GuidedGrammars:
    return GuidedGrammars(tokenizer, PADDED_VOCAB, frozenset({EOS_ID}))
