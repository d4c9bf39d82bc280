"""The tokenizer of 280 byte tokens, as transformers has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cloud_gateway.models.target_model.load import load_tokenizer
from tests.support.tiny_tokenizer import tiny_tokenizer


def byte_tokenizer(folder: Path) -> Any:
    tiny_tokenizer(280).save(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return load_tokenizer(folder)
