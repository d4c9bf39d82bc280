"""The tokenizer that a gateway sends: what is packed of a file, and what a worker refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.errors import ModelError
from edgespec.parts.text_translation.tokenizer_file import packed, unpacked
from edgespec.shared.vocabfiles import gguf_metadata
from tests.support.tiny_gguf import make_tiny_gguf

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
