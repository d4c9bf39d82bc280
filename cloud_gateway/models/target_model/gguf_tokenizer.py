"""The tokenizer of a GGUF file, as transformers makes it, without torch.

`AutoTokenizer.from_pretrained(gguf_file=...)` reads the file by code that imports torch. Its conversion of what is read
does not, so the file is read by edgespec here. The result is the same (tests/cloud_gateway/models/target_model/
test_gguf_tokenizer.py compares both for each family).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgespec.core.errors import ModelError

GENERIC = "PreTrainedTokenizerFast"
CLASSES: Mapping[str, str] = {
    "bloom": GENERIC,
    "deci": GENERIC,
    "falcon": GENERIC,
    "gemma2": "GemmaTokenizer",
    "gemma3": "GemmaTokenizer",
    "gemma4": GENERIC,
    "gpt-oss": GENERIC,
    "gpt2": "GPT2Tokenizer",
    "lfm2": GENERIC,
    "llama": GENERIC,
    "minimax-m2": GENERIC,
    "mistral": GENERIC,
    "nemotron": GENERIC,
    "phi3": GENERIC,
    "qwen2": "Qwen2Tokenizer",
    "qwen2moe": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "qwen3moe": "Qwen2Tokenizer",
    "stablelm": GENERIC,
    "starcoder2": "GPT2Tokenizer",
}
"""`general.architecture` -> the class that AutoTokenizer takes. It makes the tokenizer again when a folder is read."""
FACTS: Mapping[str, str] = {
    "model": "tokenizer_type",
    "pre": "pre_tokenizer_type",
    "tokens": "tokens",
    "scores": "scores",
    "token_type": "token_type",
    "merges": "merges",
    "precompiled_charsmap": "precompiled_charsmap",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "unknown_token_id": "unk_token_id",
    "padding_token_id": "pad_token_id",
    "add_space_prefix": "add_prefix_space",
}
"""Metadata below `tokenizer.ggml` -> their names in transformers' conversion."""
SPECIAL: Mapping[str, str] = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def converted_tokenizer(transformers: Any, metadata: Mapping[str, Any]) -> Any:
    """A fast tokenizer of transformers, from the metadata of a GGUF file. Raises ModelError for another family."""
    from transformers.integrations.gguf import convert_gguf_tokenizer

    architecture = str(metadata.get("general.architecture"))
    if architecture not in CLASSES:
        raise ModelError(
            f"GGUF files of the family {architecture} have a tokenizer that transformers does not convert: choose a "
            "model of another family."
        )

    facts: dict[str, Any] = {}
    for key, name in FACTS.items():
        if f"tokenizer.ggml.{key}" in metadata:
            facts[name] = _text(metadata[f"tokenizer.ggml.{key}"])

    backend, more = convert_gguf_tokenizer(architecture, facts)
    options = _options(metadata, facts)
    tokenizer = getattr(transformers, CLASSES[architecture])
    return tokenizer(tokenizer_object=backend, **options, **more)


def _options(metadata: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the tokenizer has besides its vocabulary: template, special tokens, and whether a text begins with one."""
    options: dict[str, Any] = {}
    if "tokenizer.chat_template" in metadata:
        options["chat_template"] = _text(metadata["tokenizer.chat_template"])
    for name in ("add_bos_token", "add_eos_token"):
        if f"tokenizer.ggml.{name}" in metadata:
            options[name] = metadata[f"tokenizer.ggml.{name}"]

    kind = facts.get("tokenizer_type")
    if kind == "llama":
        # llama.cpp adds the token to a SentencePiece vocabulary whose file has no flag.
        options.setdefault("add_bos_token", True)
    elif kind == "gemma4":
        # The template of this family writes the token itself, whatever the flag says.
        options["add_bos_token"] = False

    for name, key in SPECIAL.items():
        token = metadata.get(f"tokenizer.ggml.{key}")
        options[name] = None
        if token is not None:
            options[name] = facts["tokens"][token]

    return options


def _text(value: Any) -> Any:
    """Strings, of which the reader of edgespec keeps the bytes. Raises UnicodeDecodeError."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [_text(item) for item in value]
    return value
