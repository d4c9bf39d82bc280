"""Reads the metadata of a GGUF file, and the tokenizer in it. Those of Hugging Face: `hf_vocabulary.py`.

No model library is imported: the `gguf` package's reader takes two seconds for 49,152 vocabulary entries, the one here
some tens of milliseconds.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.core.errors import ModelError
from edgespec.core.protocol.digests import canonical, tokenizer_digest

_MAGIC = b"GGUF"
_MAX_DIMENSIONS = 4  # ggml's GGML_MAX_DIMS
_VERSIONS = (2, 3)
_STRING = 8
_ARRAY = 9
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
"""GGUF value type -> struct format (specification: ggml-org/ggml, docs/gguf.md)."""


PREPENDS = {
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "tekken",
}
"""`tokenizer.ggml.pre` of byte-level tokenizers that put a token before each prompt, if the file does not say."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer as two models must share it."""

    entries: list[bytes]
    """In id order, as `canonical` writes them."""
    bos: int | None
    """The token before each prompt."""

    @property
    def digest(self) -> bytes:
        """The digest in `Hello` and `Challenge`."""
        return tokenizer_digest(self.entries, self.bos)

    def difference(self, other: Vocabulary) -> str | None:
        """A difference of another one, as the end of "its tokenizer ..."; None for nothing."""
        if len(self.entries) != len(other.entries):
            return f"has {len(other.entries)} tokens instead of {len(self.entries)}"

        for number, (ours, theirs) in enumerate(zip(self.entries, other.entries)):
            if ours != theirs:
                return f"has another token {number}"
        if self.bos != other.bos:
            return f"begins a prompt with {_named(other.bos)} instead of {_named(self.bos)}"

        return None


def _named(token: int | None) -> str:
    if token is None:
        return "no token"
    return f"token {token}"


def is_gguf(path: Path) -> bool:
    """Whether a path is a file that begins as a GGUF file does."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def gguf_vocabulary(path: Path) -> Vocabulary:
    """The tokenizer inside a GGUF file. Raises ModelError: missing, corrupt, or without a vocabulary."""
    return vocabulary_in(gguf_metadata(path), path)


def vocabulary_in(metadata: Mapping[str, Any], path: Path) -> Vocabulary:
    """The same, of a file whose metadata is read already."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ModelError(f"{path} has no tokenizer vocabulary: choose a GGUF file of a language model")

    usual = metadata.get("tokenizer.ggml.model") == "llama" or metadata.get("tokenizer.ggml.pre") in PREPENDS
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if not metadata.get("tokenizer.ggml.add_bos_token", usual) or not isinstance(bos, int):
        bos = None
    try:
        return Vocabulary(canonical(tokens), bos)
    except (TypeError, AttributeError) as error:
        raise ModelError(f"the tokenizer in {path} cannot be read ({error}): fetch the file again") from error


def gguf_metadata(path: Path) -> dict[str, Any]:
    """The key-value part of a GGUF file: numbers, booleans and str; lists of numbers; lists of bytes for string arrays.

    Raises ModelError if the file is missing, unreadable, cut short or not GGUF version 2 or 3, and if a tensor
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
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            yield _Reader(data)
    except OSError as error:
        raise ModelError(f"the model file {path} cannot be read ({error.strerror or error}): check its path") from error
    except (struct.error, ValueError, KeyError, RecursionError) as error:
        raise ModelError(f"{path} is not a usable GGUF file ({error}): fetch it again") from error


class _Reader:
    """A cursor over a GGUF file. Raises struct.error or ValueError past the end, KeyError for an unknown type."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0
        self.tensors = 0

    def metadata(self) -> dict[str, Any]:
        if self._bytes(4) != _MAGIC:
            raise ValueError("it does not begin with GGUF")

        version = self._number("<I")
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is not one of {_VERSIONS}")

        self.tensors = self._number("<Q")
        count = self._number("<Q")
        metadata: dict[str, Any] = {}
        for _ in range(count):
            key = self._string().decode()
            kind = self._number("<I")
            metadata[key] = self._value(kind)

        return metadata

    def tensor(self) -> tuple[str, int, int]:
        """Name, number of weights, and place (bytes from the first tensor) of the next tensor, behind the metadata."""
        name = self._string().decode()
        dimensions = self._number("<I")
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

        kind = self._number("<I")
        count = self._number("<Q")
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
        raw = self.data[self.at : end]
        self.at = end
        return raw

    def _number(self, kind: str) -> Any:
        (value,) = struct.unpack_from(kind, self.data, self.at)
        self.at += struct.calcsize(kind)
        return value
