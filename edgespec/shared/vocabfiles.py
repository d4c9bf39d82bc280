"""Reads tokenizers from model files: the metadata of a GGUF file, or Hugging Face's `tokenizer.json`.

The same tokenizer gives the same digest from either (core/protocol/vocabulary.py). No model library is imported:
the `gguf` package's reader takes two seconds for 49,152 vocabulary entries, the one here some tens of milliseconds.
"""

from __future__ import annotations

import json
import mmap
import struct
from pathlib import Path
from typing import Any

from edgespec.core.errors import ModelError
from edgespec.core.protocol.vocabulary import drop_padding, fill_gaps, tokenizer_digest

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
"""GGUF value type -> struct format (specification: ggml-org/ggml, docs/gguf.md)."""


def gguf_tokenizer_digest(path: Path) -> bytes:
    """Digest of the tokenizer inside a GGUF file. Raises ModelError as `gguf_tokenizer` does."""
    return gguf_tokenizer(path)[0]


def gguf_tokenizer(path: Path) -> tuple[bytes, int]:
    """Digest and number of entries, unused ones at the end aside, of the tokenizer inside a GGUF file.

    Raises ModelError: missing, corrupt, or without a vocabulary.

    A SentencePiece vocabulary (`tokenizer.ggml.model` = `llama`) has scores in place of merges, so its digest
    equals that of another GGUF file only.
    """
    metadata = gguf_metadata(path)
    vocabulary = metadata.get("tokenizer.ggml.tokens")
    merges = metadata.get("tokenizer.ggml.merges", [])
    if not isinstance(vocabulary, list) or not isinstance(merges, list) or not vocabulary:
        raise ModelError(f"{path} has no tokenizer vocabulary: choose a GGUF file of a language model")
    bos, eos = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
    try:
        entries = drop_padding(vocabulary)
        return tokenizer_digest(entries, merges, bos, eos), len(entries)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ModelError(f"the tokenizer in {path} cannot be read ({error}): fetch the file again") from error


def hf_tokenizer_digest(path: Path) -> bytes:
    """Digest of a `tokenizer.json`, or of the one in a folder.

    It does not name the tokens that begin and end a sequence: those come from `tokenizer_config.json` beside it.
    Raises ModelError: missing, not JSON, or not a tokenizer with a vocabulary.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    description = _read_json(file)
    try:
        vocab, added = description["model"]["vocab"], description.get("added_tokens", [])
        # A Unigram model lists [text, score] pairs in id order, a BPE or WordPiece model maps text to id.
        pairs = vocab.items() if isinstance(vocab, dict) else ((text, i) for i, (text, _) in enumerate(vocab))
        entries = {int(i): str(text).encode() for text, i in pairs}
        entries |= {int(token["id"]): str(token["content"]).encode() for token in added}
        merges = [_merge(pair) for pair in description["model"].get("merges", [])]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{file} is not a tokenizer description: its vocabulary or merges cannot be read") from error
    ids = {text: i for i, text in entries.items()}
    config = file.with_name("tokenizer_config.json")
    special = _read_json(config) if config.exists() else {}
    bos, eos = (ids.get(_content(special.get(f"{name}_token")) or b"") for name in ("bos", "eos"))
    return tokenizer_digest(drop_padding(fill_gaps(entries.items())), merges, bos, eos)


def gguf_metadata(path: Path) -> dict[str, Any]:
    """The key-value part of a GGUF file: numbers, booleans and str; lists of numbers; lists of bytes for string arrays.

    Raises ModelError where the file is missing, unreadable, cut short or not GGUF version 2 or 3.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).metadata()
    except OSError as error:
        raise ModelError(f"the model file {path} cannot be read ({error.strerror or error}): check its path") from error
    except (struct.error, ValueError, KeyError, RecursionError) as error:
        raise ModelError(f"{path} is not a usable GGUF file ({error}): fetch it again") from error


class _Reader:
    """A cursor over a GGUF file. Raises struct.error or ValueError past the end, KeyError for an unknown type."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def metadata(self) -> dict[str, Any]:
        if self._bytes(4) != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._number("<I")
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is not one of {_VERSIONS}")
        self._number("<Q")  # number of tensors
        count = self._number("<Q")
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self._string().decode()
            found[key] = self._value(self._number("<I"))
        return found

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string().decode(errors="replace")
        if kind != _ARRAY:
            return self._number(_SCALARS[kind])
        kind, count = self._number("<I"), self._number("<Q")
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        if kind == _ARRAY:
            return [self._value(_ARRAY) for _ in range(count)]
        item = _SCALARS[kind]
        raw = self._bytes(count * struct.calcsize(item))
        return [value for (value,) in struct.iter_unpack(item, raw)]

    def _string(self) -> bytes:
        return self._bytes(self._number("<Q"))

    def _bytes(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise ValueError("it is cut short")
        raw, self.at = self.data[self.at : end], end
        return raw

    def _number(self, kind: str) -> Any:
        (value,) = struct.unpack_from(kind, self.data, self.at)
        self.at += struct.calcsize(kind)
        return value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(
            f"the tokenizer file {path} cannot be read ({error.strerror or error}): check its path"
        ) from error
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: fetch it again") from error
    if not isinstance(read, dict):
        raise ModelError(f"{path} is not a tokenizer description: its outermost value is no object")
    return read


def _merge(pair: str | list[str]) -> bytes:
    """Older files write a merge as "a b", newer ones as ["a", "b"]."""
    return (pair if isinstance(pair, str) else " ".join(pair)).encode()


def _content(token: Any) -> bytes | None:
    """A special token's text; Hugging Face writes either the text or an object that holds it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text.encode() if isinstance(text, str) else None
