"""The digest that names a tokenizer: draft and target must share it, or token ids mean different text.

The hash runs over, in this order, every integer being four bytes, little-endian:

1. the number of vocabulary entries, then each entry in id order as its length in bytes and its UTF-8 bytes;
2. the number of merges, then each merge in order of rank, in the same way, its two halves joined by one space;
3. the id of the beginning-of-sequence token, then of the end-of-sequence token; `NO_TOKEN` where there is none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

NO_TOKEN = 2**32 - 1
"""Stands for a special token that the tokenizer does not have."""


def tokenizer_digest(vocabulary: Sequence[bytes], merges: Sequence[bytes], bos: int | None, eos: int | None) -> bytes:
    """SHA-256 (32 bytes) of a tokenizer's canonical description, as defined in this module's docstring."""
    sha = hashlib.sha256(_strings(vocabulary))
    sha.update(_strings(merges))
    for token in (bos, eos):
        sha.update(_u32(NO_TOKEN if token is None else token))
    return sha.digest()


def fill_gaps(entries: Iterable[tuple[int, bytes]]) -> list[bytes]:
    """The vocabulary in id order; an id without an entry reads `[PAD<id>]`, as GGUF files write it."""
    by_id = dict(entries)
    return [by_id[i] if i in by_id else b"[PAD%d]" % i for i in range(max(by_id, default=-1) + 1)]


def drop_padding(vocabulary: Sequence[bytes]) -> Sequence[bytes]:
    """The vocabulary without the `[PAD<id>]` entries at its end, which only pad it to the model's output size."""
    end = len(vocabulary)
    while end and vocabulary[end - 1] == b"[PAD%d]" % (end - 1):
        end -= 1
    return vocabulary[:end]


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def _strings(strings: Sequence[bytes]) -> bytes:
    parts = [_u32(len(strings))]
    for text in strings:
        parts.append(_u32(len(text)))
        parts.append(text)
    return b"".join(parts)
