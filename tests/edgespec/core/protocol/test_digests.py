"""Digests of prefixes and tokenizers against their definitions, and the tokenizer that a gateway sends."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.errors import ModelError
from edgespec.core.protocol.digests import (
    NO_TOKEN,
    Prefix,
    canonical,
    drop_padding,
    fill_gaps,
    prefix_hash,
    tokenizer_digest,
)
from edgespec.core.protocol.tokenizer_file import packed, unpacked
from edgespec.shared.vocabfiles import gguf_metadata
from tests.support.tiny_gguf import make_tiny_gguf

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


GOOD: dict[str, Any] = {
    "model": "gpt2", "tokens": [b"a", b"b", b"ab"], "token_type": [1, 1, 1], "merges": [b"a b"], "pre": "gpt-2",
    "bos_token_id": 0, "add_bos_token": False,
}  # fmt: skip


def test_a_files_tokenizer_is_packed_and_nothing_else_of_it(tmp_path: Path) -> None:
    metadata = gguf_metadata(make_tiny_gguf(tmp_path / "tiny.gguf"))
    file = unpacked(packed(metadata))
    assert file.tokens == metadata["tokenizer.ggml.tokens"] and file.merges == metadata["tokenizer.ggml.merges"]
    assert (file.model, file.pre, file.bos_token_id) == ("gpt2", "gpt-2", 0)
    assert metadata["tokenizer.chat_template"].encode() not in packed(metadata)


def test_a_tokenizer_of_another_kind_is_not_packed() -> None:
    assert packed({f"tokenizer.ggml.{name}": value for name, value in GOOD.items()})
    assert not packed({f"tokenizer.ggml.{name}": value for name, value in (GOOD | {"model": "bert"}).items()})
    assert not packed({})


@pytest.mark.parametrize(
    "change",
    [
        {"model": "rwkv"}, {"tokens": []}, {"tokens": [b"a" * 1025] * 3}, {"token_type": [1]}, {"token_type": [7] * 3},
        {"scores": [1.0]}, {"scores": [float("nan")] * 3}, {"merges": None}, {"model": "llama"}, {"bos_token_id": 3},
        {"pre": "../x"}, {"chat_template": "{{ x }}"}, {"tokens": ["a", "b", 1]},
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    assert unpacked(msgspec.msgpack.encode(GOOD)).tokens == GOOD["tokens"]
    with pytest.raises(ModelError):
        unpacked(msgspec.msgpack.encode(GOOD | change))


@given(st.binary(max_size=200), st.integers(0, 60))
def test_no_bytes_raise_another_error(data: bytes, at: int) -> None:
    whole = bytearray(msgspec.msgpack.encode(GOOD))
    whole[at % len(whole) :] = data
    try:
        unpacked(bytes(whole))
    except ModelError:
        return
