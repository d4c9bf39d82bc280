"""Tokenizers read from files: one tokenizer, one digest; what cannot be read is one sentence."""

from __future__ import annotations

import random
from pathlib import Path

import gguf
import pytest

from edgespec.core.errors import ModelError
from edgespec.shared.hf_vocabulary import hf_tokenizer_digest
from edgespec.shared.vocabfiles import gguf_metadata, gguf_tokenizer_digest
from tests.support.tiny_gguf import gguf_file, make_tiny_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", vocab=300)


def test_metadata_equals_what_the_gguf_package_reads(tiny: Path) -> None:
    ours, theirs = gguf_metadata(tiny), gguf.GGUFReader(tiny).fields
    assert set(ours) == {key for key in theirs if not key.startswith("GGUF.")}
    for key, value in ours.items():
        if isinstance(value, list) and value and isinstance(value[0], bytes):
            value = [text.decode() for text in value]
        assert value == theirs[key].contents(), key


def test_a_file_cut_anywhere_in_its_metadata_is_one_sentence(tiny: Path, tmp_path: Path) -> None:
    whole, cut = tiny.read_bytes(), tmp_path / "cut.gguf"
    end = whole.index(b"token_embd.weight") - 8
    for length in [0, 3, 4, 8, 23, *random.Random(1).sample(range(24, end), 60)]:
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            gguf_tokenizer_digest(cut)


@pytest.mark.parametrize("place", [0, 4, 8 + 8, 24])
def test_a_damaged_head_is_one_sentence(place: int, tiny: Path, tmp_path: Path) -> None:
    damaged = bytearray(tiny.read_bytes())
    damaged[place : place + 8] = b"\xff" * 8
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged)
    with pytest.raises(ModelError, match="not a usable GGUF file"):
        gguf_metadata(path)


def test_a_gguf_file_without_a_vocabulary_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "no-vocabulary.gguf"
    with gguf_file(path):
        pass
    with pytest.raises(ModelError, match="no tokenizer vocabulary"):
        gguf_tokenizer_digest(path)


@pytest.mark.parametrize("read", [gguf_tokenizer_digest, hf_tokenizer_digest])
def test_a_missing_file_is_one_sentence(read: object, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere cannot be read \(No such file or directory\)"):
        read(tmp_path / "nowhere")  # type: ignore[operator]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": {"vocab": 3}}', '{"model": {"vocab": {"a": "x"}}}'])
def test_a_json_file_that_is_no_tokenizer_is_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(ModelError, match=r"tokenizer\.json is not"):
        hf_tokenizer_digest(path)


@pytest.mark.claim("no-gguf-declares-more-than-its-file-holds")
@pytest.mark.parametrize("fault", ["size", "place", "dimensions", "alignment", "count"])
def test_a_header_that_declares_more_than_the_file_is_refused(fault: str, tiny: Path, tmp_path: Path) -> None:
    data = bytearray(tiny.read_bytes())
    at = data.index(b"token_embd.weight") + len(b"token_embd.weight")
    dimensions = int.from_bytes(data[at : at + 4], "little")
    if fault == "dimensions":
        data[at : at + 4] = (5).to_bytes(4, "little")
    elif fault == "size":
        data[at + 4 : at + 12] = (1 << 40).to_bytes(8, "little")
    elif fault == "place":
        place = at + 4 + 8 * dimensions + 4
        data[place : place + 8] = (1 << 40).to_bytes(8, "little")
    elif fault == "count":
        data[8:16] = (1 << 40).to_bytes(8, "little")
    else:
        writer = b"general.alignment" + (4).to_bytes(4, "little") + (0).to_bytes(4, "little")
        data[16:24] = (int.from_bytes(data[16:24], "little") + 1).to_bytes(8, "little")
        data[24:24] = (17).to_bytes(8, "little") + writer
    path = tmp_path / "forged.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"forged\.gguf is not a usable GGUF file"):
        gguf_metadata(path)
