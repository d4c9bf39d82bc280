"""Reads tokenizers from model files: the metadata of a GGUF file, or Hugging Face's `tokenizer.json`.

The same tokenizer gives the same digest from either (core/protocol/vocabulary.py). No model library is imported:
the `gguf` package's reader takes two seconds for 49,152 vocabulary entries, the one here some tens of milliseconds.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.core.errors import ModelError
from edgespec.core.protocol.vocabulary import canonical, fill_gaps, tokenizer_digest

_MAGIC = b"GGUF"
_MAX_DIMENSIONS = 4  # ggml's GGML_MAX_DIMS
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
"""GGUF value type -> struct format (specification: ggml-org/ggml, docs/gguf.md)."""


PREPENDS = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"}
"""`tokenizer.ggml.pre` of byte-level tokenizers that put a token before each prompt, where the file does not say."""


MAX_ENTRIES = 1 << 24
"""Of a vocabulary, whose ids may leave gaps: sixty times the largest in use (2**18)."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer as two models must share it."""

    entries: list[bytes]
    """In id order, as `canonical` writes them."""
    bos: int | None
    """The token before each prompt."""

    @property
    def digest(self) -> bytes:
        """As in `Hello` and `Challenge`."""
        return tokenizer_digest(self.entries, self.bos)

    def difference(self, other: Vocabulary) -> str | None:
        """What another one has differently, as the end of "its tokenizer ..."; None for nothing."""
        if len(self.entries) != len(other.entries):
            return f"has {len(other.entries)} tokens instead of {len(self.entries)}"
        for number, (ours, theirs) in enumerate(zip(self.entries, other.entries)):
            if ours != theirs:
                return f"has another token {number}"
        if self.bos != other.bos:
            mine, its = ("no token" if bos is None else f"token {bos}" for bos in (self.bos, other.bos))
            return f"begins a prompt with {its} instead of {mine}"
        return None


def vocabulary(path: Path) -> Vocabulary:
    """The tokenizer of a GGUF file or of a Hugging Face folder; no weights are read. Raises ModelError."""
    return hf_vocabulary(path) if path.is_dir() else gguf_vocabulary(path)


def gguf_tokenizer_digest(path: Path) -> bytes:
    """Digest of the tokenizer inside a GGUF file. Raises ModelError as `gguf_vocabulary` does."""
    return gguf_vocabulary(path).digest


def gguf_vocabulary(path: Path) -> Vocabulary:
    """The tokenizer inside a GGUF file. Raises ModelError: missing, corrupt, or without a vocabulary."""
    metadata = gguf_metadata(path)
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ModelError(f"{path} has no tokenizer vocabulary: choose a GGUF file of a language model")
    usual = metadata.get("tokenizer.ggml.model") == "llama" or metadata.get("tokenizer.ggml.pre") in PREPENDS
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    prepends = metadata.get("tokenizer.ggml.add_bos_token", usual) and isinstance(bos, int)
    try:
        return Vocabulary(canonical(tokens), bos if prepends else None)
    except (TypeError, AttributeError) as error:
        raise ModelError(f"the tokenizer in {path} cannot be read ({error}): fetch the file again") from error


def hf_tokenizer_digest(path: Path) -> bytes:
    """Digest of a `tokenizer.json`, or of the one in a folder. Raises ModelError as `hf_vocabulary` does."""
    return hf_vocabulary(path).digest


def hf_vocabulary(path: Path) -> Vocabulary:
    """The tokenizer of a `tokenizer.json`, or of the one in a folder, with what stands in the files beside it.

    Raises ModelError: missing, not JSON, or not a tokenizer with a vocabulary.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    description = json_object(file)
    try:
        vocab, added = description["model"]["vocab"], description.get("added_tokens", [])
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


def gguf_metadata(path: Path) -> dict[str, Any]:
    """The key-value part of a GGUF file: numbers, booleans and str; lists of numbers; lists of bytes for string arrays.

    Raises ModelError where the file is missing, unreadable, cut short or not GGUF version 2 or 3, and where a tensor
    cannot lie within it: llama.cpp then never reads such a header (the class of CVE-2026-7482 and CVE-2026-27940).
    """
    with _reading(path) as reader:
        metadata = reader.metadata()
        reader.check_tensors(metadata.get("general.alignment", 32))
        return metadata


def gguf_tensors(path: Path) -> list[tuple[str, int]]:
    """Name and number of weights of each tensor of a GGUF file. Raises ModelError as `gguf_metadata` does."""
    with _reading(path) as reader:
        reader.metadata()
        return [reader.tensor()[:2] for _ in range(reader.tensors)]


@contextmanager
def _reading(path: Path) -> Iterator[_Reader]:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield _Reader(data)
    except OSError as error:
        raise ModelError(f"the model file {path} cannot be read ({error.strerror or error}): check its path") from error
    except (struct.error, ValueError, KeyError, RecursionError) as error:
        raise ModelError(f"{path} is not a usable GGUF file ({error}): fetch it again") from error


class _Reader:
    """A cursor over a GGUF file. Raises struct.error or ValueError past the end, KeyError for an unknown type."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.tensors = data, 0, 0

    def metadata(self) -> dict[str, Any]:
        if self._bytes(4) != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._number("<I")
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is not one of {_VERSIONS}")
        self.tensors = self._number("<Q")
        count = self._number("<Q")
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self._string().decode()
            found[key] = self._value(self._number("<I"))
        return found

    def tensor(self) -> tuple[str, int, int]:
        """Name, number of weights, and place (bytes from the first tensor) of the next tensor, behind the metadata."""
        name, dimensions = self._string().decode(), self._number("<I")
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"a tensor has {dimensions} dimensions")
        sizes = [self._number("<Q") for _ in range(dimensions)]
        self._number("<I")  # its type
        return name, math.prod(sizes), self._number("<Q")

    def check_tensors(self, alignment: object) -> None:
        """Reads the table of tensors. Raises ValueError for one that ends beyond the file, at one bit a weight."""
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError("its alignment is no positive number")
        ends = [place + weights // 8 for _, weights, place in (self.tensor() for _ in range(self.tensors))]
        first = -(-self.at // alignment) * alignment
        if ends and first + max(ends) > len(self.data):
            raise ValueError("a tensor lies beyond its end")

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
    return json_object(path) if path.exists() else {}


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
    return text.encode() if isinstance(text, str) else None
