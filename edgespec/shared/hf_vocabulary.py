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
    file = path / "tokenizer.json" if path.is_dir() else path
    description = json_object(file)
    try:
        vocab = description["model"]["vocab"]
        added = description.get("added_tokens", [])
        # A Unigram model lists [text, score] pairs in id order, a BPE or WordPiece model maps text to id.
        pairs = vocab.items() if isinstance(vocab, dict) else ((text, i) for i, (text, _) in enumerate(vocab))
        entries = {int(i): str(text).encode() for text, i in pairs}
        entries |= {int(token["id"]): str(token["content"]).encode() for token in added}
        begin = _begins_prompts(description)
        if not all(0 <= number < MAX_ENTRIES for number in entries):
            raise ValueError("a token has no usable number")
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{file} is not a tokenizer description: its vocabulary cannot be read") from error
    ids = {text: i for i, text in entries.items()}
    special, config = (_optional_json(file.with_name(name)) for name in ("tokenizer_config.json", "config.json"))
    configured = special.get("add_bos_token")
    if configured is not None:
        begin = _content(special.get("bos_token")) if configured else None
    text_config = config.get("text_config")
    size = (text_config if isinstance(text_config, dict) else config).get("vocab_size")
    if isinstance(size, int):  # the model has no output for tokens beyond it
        entries = {i: text for i, text in entries.items() if i < size}
    return Vocabulary(canonical(fill_gaps(entries.items())), ids.get(begin) if begin else None)


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
    text = token.get("content") if isinstance(token, dict) else token
    if isinstance(text, str):
        return text.encode()
    return None
