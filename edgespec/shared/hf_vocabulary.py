"""Reads the tokenizer of a Hugging Face folder, or of either kind of model file.

The same tokenizer gives the same digest as in a GGUF file (core/protocol/digests.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgespec.core.errors import ModelError
from edgespec.core.protocol.digests import canonical, fill_gaps
from edgespec.shared.vocabfiles import Vocabulary, gguf_vocabulary

MAX_ENTRIES = 1 << 24
"""Of a vocabulary, whose ids may leave gaps: sixty times the largest in use (2**18)."""


def vocabulary(path: Path) -> Vocabulary:
    """The tokenizer of a GGUF file or of a Hugging Face folder; no weights are read. Raises ModelError."""
    if path.is_dir():
        return hf_vocabulary(path)
    return gguf_vocabulary(path)


def hf_vocabulary(path: Path) -> Vocabulary:
    """The tokenizer of a `tokenizer.json`, or of the one in a folder, with what stands in the files beside it.

    Raises ModelError: missing, not JSON, or not a tokenizer with a vocabulary.
    """
    file = path
    if path.is_dir():
        file = path / "tokenizer.json"
    description = json_object(file)
    try:
        entries = _entries(description)
        begin = _begins_prompts(description)
    except (
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:
        raise ModelError(f"{file} is not a tokenizer description: its vocabulary cannot be read") from error

    special = _optional_json(file.with_name("tokenizer_config.json"))
    configured = special.get("add_bos_token")
    if configured:
        begin = _content(special.get("bos_token"))
    elif configured is not None:
        begin = None
    bos = None
    if begin:
        bos = {text: number for number, text in entries.items()}.get(begin)

    config = _optional_json(file.with_name("config.json"))
    if isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    size = config.get("vocab_size")
    if isinstance(size, int):  # the model has no output for tokens beyond it
        entries = {number: text for number, text in entries.items() if number < size}
    return Vocabulary(canonical(fill_gaps(entries.items())), bos)


def _entries(description: dict[str, Any]) -> dict[int, bytes]:
    """The tokens by their numbers. Raises ValueError and others if it is no description of a tokenizer."""
    vocab = description["model"]["vocab"]
    entries: dict[int, bytes] = {}
    if isinstance(vocab, dict):  # a BPE or WordPiece model maps text to number
        for text, number in vocab.items():
            entries[int(number)] = str(text).encode()
    else:  # a Unigram model lists text and score in the order of the numbers
        for number, (text, _) in enumerate(vocab):
            entries[number] = str(text).encode()

    for token in description.get("added_tokens", []):
        entries[int(token["id"])] = str(token["content"]).encode()
    if not all(0 <= number < MAX_ENTRIES for number in entries):
        raise ValueError("a token has no usable number")

    return entries


def json_object(path: Path, hint: str = "check its path") -> dict[str, Any]:
    """A file that holds one JSON object. Raises ModelError, with the hint for a file that cannot be read."""
    try:
        read = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"The file {path} cannot be read ({error.strerror or error}): {hint}.") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: fetch it again.") from error
    if not isinstance(read, dict):
        raise ModelError(f"{path} is not a JSON object: fetch it again.")

    return read


def _optional_json(path: Path) -> dict[str, Any]:
    if path.exists():
        return json_object(path)
    return {}


def _begins_prompts(description: dict[str, Any]) -> bytes | None:
    """The text of the token that a `TemplateProcessing` step puts before a single text."""
    post = description.get("post_processor") or {}
    for step in post.get("processors", [post]):
        if step.get("type") == "TemplateProcessing" and "SpecialToken" in step["single"][0]:
            return str(step["single"][0]["SpecialToken"]["id"]).encode()
    return None


def _content(token: Any) -> bytes | None:
    """A special token's text; Hugging Face writes either the text or an object that holds it."""
    if isinstance(token, dict):
        token = token.get("content")
    if isinstance(token, str):
        return token.encode()
    return None
