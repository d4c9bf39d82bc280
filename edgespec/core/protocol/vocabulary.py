"""The digest that names a tokenizer: draft and target must share it, or token ids mean different text.

The hash runs over, in this order, every integer being four bytes, little-endian:

1. the number of vocabulary entries, then each entry in id order as its length in bytes and its UTF-8 bytes;
2. the id of the token that begins every prompt; `NO_TOKEN` where prompts begin with none.

Merges, scores and the tokens that end a completion are not part of it: they matter to the gateway alone, which cuts
text into tokens and ends completions, and a Hugging Face folder and a GGUF file of one model write them differently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

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
    sha.update(_u32(NO_TOKEN if bos is None else bos))
    return sha.digest()


def canonical(vocabulary: Sequence[bytes]) -> list[bytes]:
    """The entries as they are hashed: SentencePiece's spaces as spaces, nothing at the end that stands for no text."""
    return [entry.replace(_SPACE, b" ") for entry in drop_padding(vocabulary)]


def fill_gaps(entries: Iterable[tuple[int, bytes]]) -> list[bytes]:
    """The vocabulary in id order; an id without an entry reads `[PAD<id>]`, as GGUF files write it."""
    by_id = dict(entries)
    return [by_id[i] if i in by_id else b"[PAD%d]" % i for i in range(max(by_id, default=-1) + 1)]


def drop_padding(vocabulary: Sequence[bytes]) -> Sequence[bytes]:
    """The vocabulary without the entries at its end that stand for no text, as `[PAD<id>]`, up to the output's size."""
    end = len(vocabulary)
    while end and vocabulary[end - 1] in (b"[PAD%d]" % (end - 1), _IMAGE):
        end -= 1
    return vocabulary[:end]


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "little")
