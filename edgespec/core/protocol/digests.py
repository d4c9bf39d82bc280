"""The SHA-256 that names a prefix of a request's committed tokens, and the one that names a tokenizer.

A token id is hashed as four bytes, little-endian, so the hash of a prefix extends in one small update.

Draft and target must share a tokenizer, or token ids mean different text. Its digest runs over, in this order, every
integer being four bytes, little-endian:

1. the number of vocabulary entries, then each entry in id order as its length in bytes and its UTF-8 bytes;
2. the id of the token that begins every prompt; `NO_TOKEN` if prompts begin with none.

Merges, scores and the tokens that end a completion are not part of it: they matter to the gateway alone, which cuts
text into tokens and ends completions, and a Hugging Face folder and a GGUF file of one model write them differently.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence


def prefix_hash(tokens: Iterable[int]) -> bytes:
    """SHA-256 over the token ids, each as four little-endian bytes. The slow twin of `Prefix`."""
    return hashlib.sha256(b"".join(t.to_bytes(4, "little") for t in tokens)).digest()


class Prefix:
    """Committed tokens that only grow, with the hash of every length at which an `extend` ended."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.tokens: list[int] = []
        self._sha = hashlib.sha256()
        self.digests: dict[int, bytes] = {}
        """The hash of each length at which an `extend` ended."""
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def digest(self) -> bytes:
        """Hash of the whole prefix (32 bytes)."""
        return self.digests[len(self.tokens)]

    def digest_at(self, length: int) -> bytes:
        """Hash of the first `length` tokens, cached or computed."""
        return self.digests.get(length) or prefix_hash(self.tokens[:length])

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens and stores the hash of the new length."""
        packed = array("I", tokens)
        self._sha.update(packed.tobytes())
        self.tokens.extend(tokens)
        self.digests[len(self.tokens)] = self._sha.digest()


NO_TOKEN = 2**32 - 1
"""Stands for a special token that the tokenizer does not have."""
_SPACE = "\u2581".encode()
"""SentencePiece's sign for a space. A GGUF file has spaces in its place in added tokens, a folder does not."""
_IMAGE = b"<image_soft_token>"
"""Gemma 3's place of an image, which only its larger models have."""


def tokenizer_digest(vocabulary: Sequence[bytes], bos: int | None) -> bytes:
    """SHA-256 (32 bytes) of a tokenizer's canonical description, as defined in this module's docstring."""
    sha = hashlib.sha256(_u32(len(vocabulary)))
    for text in vocabulary:
        sha.update(_u32(len(text)))
        sha.update(text)

    if bos is None:
        bos = NO_TOKEN
    sha.update(_u32(bos))
    return sha.digest()


def canonical(vocabulary: Sequence[bytes]) -> list[bytes]:
    """The entries as they are hashed: SentencePiece's spaces as spaces, nothing at the end that stands for no text."""
    return [entry.replace(_SPACE, b" ") for entry in drop_padding(vocabulary)]


def fill_gaps(entries: Iterable[tuple[int, bytes]]) -> list[bytes]:
    """The vocabulary in id order; an id without an entry reads `[PAD<id>]`, as GGUF files write it."""
    by_id = dict(entries)
    vocabulary = [b"[PAD%d]" % id_ for id_ in range(max(by_id, default=-1) + 1)]
    for id_, entry in by_id.items():
        vocabulary[id_] = entry

    return vocabulary


def drop_padding(vocabulary: Sequence[bytes]) -> Sequence[bytes]:
    """The vocabulary without the entries at its end that stand for no text, as `[PAD<id>]`, up to the output's size."""
    end = len(vocabulary)
    while end and vocabulary[end - 1] in (b"[PAD%d]" % (end - 1), _IMAGE):
        end -= 1

    return vocabulary[:end]


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "little")
