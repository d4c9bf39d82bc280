"""Digests of prefixes and tokenizers against their definitions."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.protocol.digests import (
    NO_TOKEN,
    Prefix,
    canonical,
    drop_padding,
    fill_gaps,
    prefix_hash,
    tokenizer_digest,
)

VOCABULARY = [b"<s>", b"a", "é".encode(), b""]


def test_digest_is_the_hash_of_the_documented_bytes() -> None:
    described = struct.pack("<I", 4)
    for text in VOCABULARY:
        described += struct.pack("<I", len(text)) + text
    assert tokenizer_digest(VOCABULARY, 0) == hashlib.sha256(described + struct.pack("<I", 0)).digest()
    assert tokenizer_digest(VOCABULARY, None) == hashlib.sha256(described + struct.pack("<I", NO_TOKEN)).digest()


@pytest.mark.parametrize(
    "changed",
    [
        (VOCABULARY[::-1], 0),
        (VOCABULARY[:-1], 0),
        ([b"<s>a", b"", *VOCABULARY[2:]], 0),
        ([*VOCABULARY, b"a b"], 0),
        (VOCABULARY, 1),
        (VOCABULARY, None),
    ],
)
def test_any_difference_changes_the_digest(changed: tuple[list[bytes], int | None]) -> None:
    assert tokenizer_digest(*changed) != tokenizer_digest(VOCABULARY, 0)


def test_canonical_entries_have_plain_spaces_and_end_with_text() -> None:
    entries = ["▁the".encode(), b"[PAD1]", "▁▁".encode(), b"<image_soft_token>", b"[PAD4]"]
    assert canonical(entries) == [b" the", b"[PAD1]", b"  "]


def test_padding_at_the_end_does_not_count_but_gaps_do() -> None:
    assert fill_gaps([(3, b"d"), (0, b"a")]) == [b"a", b"[PAD1]", b"[PAD2]", b"d"]
    assert fill_gaps([]) == []
    assert drop_padding([b"a", b"[PAD1]", b"d", b"[PAD3]", b"[PAD4]"]) == [b"a", b"[PAD1]", b"d"]
    assert drop_padding([b"a", b"[PAD7]"]) == [b"a", b"[PAD7]"]


tokens = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20)


@given(st.lists(tokens, min_size=1, max_size=6))
def test_every_boundary_has_the_hash_of_all_tokens_before_it(pieces: list[list[int]]) -> None:
    prefix = Prefix()
    everything = []
    for piece in pieces:
        prefix.extend(piece)
        everything += piece
        assert prefix.digest == prefix_hash(everything) == prefix.digest_at(len(everything))
    for length in range(1, len(everything) + 1):
        assert prefix.digest_at(length) == prefix_hash(everything[:length])


def test_a_prefix_matches_its_own_boundaries_only() -> None:
    prefix = Prefix([1, 2])
    prefix.extend([3])
    assert prefix.digests == {2: prefix_hash([1, 2]), 3: prefix_hash([1, 2, 3])}
