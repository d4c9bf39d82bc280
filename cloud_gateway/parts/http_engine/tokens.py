"""The tokenizer of the model that the server computes, and whether the server has it: token ids are all it is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cloud_gateway.models.target_model.load import LoadedVocabulary, load_tokenizer, load_vocabulary
from cloud_gateway.parts.http_engine.dialects import GarbledError, Question
from cloud_gateway.parts.http_engine.server import PARTIAL, RefusedError, Server
from cloud_gateway.parts.http_engine.stream import ServerTokens
from edgespec.core.errors import ModelError
from edgespec.shared.hf_vocabulary import hf_vocabulary, json_object
from edgespec.shared.models import model_digest
from edgespec.shared.vocabfiles import gguf_vocabulary

TEXTS = (
    "Hello, world! It's 12:34, isn't it?",
    "  def f(x):\n\treturn x ** 2  # 3.14159",
    "1234567890 0x7f\r\n\r\n",
    "Übergröße, 東京タワー, 🚀 e\u0301, Привет",
)
PIECES = 512
"""Texts of tokens that are compared in one call; those of the whole vocabulary are."""


def tokens_of(path: Path) -> tuple[LoadedVocabulary, ServerTokens]:
    """The tokenizer in a folder or a GGUF file, of which no weights are read. Raises ModelError."""
    if path.is_file():
        vocabulary, ends = load_vocabulary(path)
        return vocabulary, ServerTokens(len(gguf_vocabulary(path).entries), frozenset(ends))

    words = hf_vocabulary(path)
    vocabulary = LoadedVocabulary(load_tokenizer(path), model_digest(path / "tokenizer.json"), words.digest)
    return vocabulary, ServerTokens(_outputs(path, len(words.entries)), _ends(path, vocabulary.tokenizer))


def _outputs(path: Path, least: int) -> int:
    """Tokens that the model can have: more than the tokenizer's, if its configuration says so."""
    config = _optional(path / "config.json")
    text_config = config.get("text_config")
    if isinstance(text_config, dict):
        config = text_config
    return max(int(config.get("vocab_size", 0)), least)


def _ends(path: Path, tokenizer: Any) -> frozenset[int]:
    """Every token that ends a completion."""
    ends = {tokenizer.eos_token_id}
    for name in ("config.json", "generation_config.json"):
        listed = _optional(path / name).get("eos_token_id")
        if isinstance(listed, list):
            ends.update(listed)
        else:
            ends.add(listed)
    return frozenset(token for token in ends if token is not None)


def _optional(file: Path) -> dict[str, Any]:
    if file.exists():
        return json_object(file)
    return {}


async def check_same(server: Server, tokenizer: Any, vocab_size: int) -> None:
    """Compares what both make of some texts and of the text of each token, and the first number that is no token.

    Raises ModelError.
    """
    size = max(vocab_size, len(tokenizer))
    try:
        same = await _agrees(server, tokenizer) and await _takes(server, size - 1) and not await _takes(server, size)
    except (*PARTIAL, RefusedError, GarbledError) as error:
        raise ModelError(
            f"{server.url} cannot be compared with `target.model` ({error or type(error).__name__})."
        ) from error
    if not same:
        raise ModelError(
            f"The server at {server.url} has another tokenizer than `target.model`: name the folder or the GGUF file "
            "of the model that it serves."
        )


async def _agrees(server: Server, tokenizer: Any) -> bool:
    for text in TEXTS:
        if await server.tokenize(text) != tokenizer.encode(text, add_special_tokens=False):
            return False

    # A text for many tokens at once, of those that a text can name: a token within a character cannot.
    words = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    for start in range(0, len(words), PIECES):
        text = "\n".join(word for word in words[start : start + PIECES] if "\ufffd" not in word)
        if await server.tokenize(text) != tokenizer.encode(text, add_special_tokens=False):
            return False
    return True


async def _takes(server: Server, token: int) -> bool:
    """Whether the server completes a prompt of this token."""
    try:
        await server.rows(Question(server.model.id), [[token]])
    except RefusedError as error:
        if error.status == 400:
            return False
        raise
    return True
