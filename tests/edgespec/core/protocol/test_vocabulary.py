"""The tokenizer digest against its description written out by hand."""

from __future__ import annotations

import hashlib
import struct

import pytest

from edgespec.core.protocol.vocabulary import NO_TOKEN, drop_padding, fill_gaps, tokenizer_digest

VOCABULARY = [b"<s>", b"a", "é".encode(), b""]
MERGES = [b"a b"]


def test_digest_is_the_hash_of_the_documented_bytes() -> None:
    described = struct.pack("<I", 4)
    for text in VOCABULARY:
        described += struct.pack("<I", len(text)) + text
    described += struct.pack("<I", 1) + struct.pack("<I", 3) + b"a b" + struct.pack("<II", 0, NO_TOKEN)
    assert tokenizer_digest(VOCABULARY, MERGES, 0, None) == hashlib.sha256(described).digest()


@pytest.mark.parametrize(
    "changed",
    [
        (VOCABULARY[::-1], MERGES, 0, None),
        (VOCABULARY[:-1], MERGES, 0, None),
        ([b"<s>a", b"", *VOCABULARY[2:]], MERGES, 0, None),
        (VOCABULARY, [], 0, None),
        (VOCABULARY, [b"b a"], 0, None),
        ([*VOCABULARY, b"a b"], [], 0, None),
        (VOCABULARY, MERGES, 1, None),
        (VOCABULARY, MERGES, None, 0),
        (VOCABULARY, MERGES, 0, 0),
    ],
)
def test_any_difference_changes_the_digest(changed: tuple[list[bytes], list[bytes], int | None, int | None]) -> None:
    assert tokenizer_digest(*changed) != tokenizer_digest(VOCABULARY, MERGES, 0, None)


def test_padding_at_the_end_does_not_count_but_gaps_do() -> None:
    assert fill_gaps([(3, b"d"), (0, b"a")]) == [b"a", b"[PAD1]", b"[PAD2]", b"d"]
    assert fill_gaps([]) == []
    assert drop_padding([b"a", b"[PAD1]", b"d", b"[PAD3]", b"[PAD4]"]) == [b"a", b"[PAD1]", b"d"]
    assert drop_padding([b"a", b"[PAD7]"]) == [b"a", b"[PAD7]"]
