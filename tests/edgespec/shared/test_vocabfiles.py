"""Tokenizers read from files, as a folder and as GGUF: one digest for one tokenizer, one sentence for what is none."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from edgespec.core.errors import ModelError
from edgespec.shared.hf_vocabulary import hf_vocabulary, vocabulary
from edgespec.shared.vocabfiles import gguf_metadata, gguf_vocabulary
from tests.support.tiny_gguf import gguf_file, make_tiny_gguf
from tests.support.tiny_tokenizer import tiny_tokenizer


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", vocab=300)


def test_metadata_equals_what_the_gguf_package_reads(tiny: Path) -> None:
    ours = gguf_metadata(tiny)
    theirs = gguf.GGUFReader(tiny).fields
    assert set(ours) == {key for key in theirs if not key.startswith("GGUF.")}
    for key, value in ours.items():
        if isinstance(value, list) and value and isinstance(value[0], bytes):
            value = [text.decode() for text in value]
        assert value == theirs[key].contents(), key


def test_a_file_cut_anywhere_in_its_metadata_is_one_sentence(tiny: Path, tmp_path: Path) -> None:
    whole = tiny.read_bytes()
    cut = tmp_path / "cut.gguf"
    end = whole.index(b"token_embd.weight") - 8
    for length in [0, 3, 4, 8, 23, *random.Random(1).sample(range(24, end), 60)]:
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            gguf_vocabulary(cut)


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
        gguf_vocabulary(path)


@pytest.mark.parametrize("read", [gguf_vocabulary, hf_vocabulary])
def test_a_missing_file_is_one_sentence(read: object, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere cannot be read \(No such file or directory\)"):
        read(tmp_path / "nowhere")  # type: ignore[operator]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": {"vocab": 3}}', '{"model": {"vocab": {"a": "x"}}}'])
def test_a_json_file_that_is_no_tokenizer_is_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(ModelError, match=r"tokenizer\.json is not"):
        hf_vocabulary(path)


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


Folder = dict[str, Any]
"""Content of each JSON file of a folder."""
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "t", "▁t", "▁the", "é"]


def template(begin: str) -> dict[str, Any]:
    """Content of `post_processor` that puts a token before a text."""
    steps = [{"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing", "single": steps}]}


def added(*tokens: tuple[int, str]) -> list[dict[str, Any]]:
    return [{"id": number, "content": text, "special": True} for number, text in tokens]


def qwen() -> tuple[Folder, dict[str, Any]]:
    """Byte-level BPE without a first token; `bos_token` null here, an id there; the GGUF file padded to the output."""
    tokens = tiny_tokenizer(300).tokens
    specials = [(300, "<|endoftext|>x"), (301, "<|im_start|>x"), (302, "<|im_end|>x")]
    folder = {
        "tokenizer.json": {
            "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(tokens)}, "merges": [["t", "h"]]},
            "added_tokens": added(*specials),
            "post_processor": {"type": "ByteLevel"},
        },
        "tokenizer_config.json": {"bos_token": None, "eos_token": "<|im_end|>x", "add_bos_token": False},
        "config.json": {"vocab_size": 320, "bos_token_id": 300, "eos_token_id": 302},
    }
    padded = [*tokens, *(text for _, text in specials), *(f"[PAD{i}]" for i in range(303, 320))]
    return folder, {"model": "gpt2", "pre": "qwen2", "tokens": padded, "bos": 300, "eos": 300, "add_bos": False}


def llama3() -> tuple[Folder, dict[str, Any]]:
    """Byte-level BPE whose prompts begin with a token: a template in the folder, in older GGUF files only `pre`."""
    folder, file = qwen()
    folder["tokenizer.json"]["post_processor"] = template("<|endoftext|>x")
    del folder["tokenizer_config.json"]["add_bos_token"]
    return folder, file | {"pre": "llama-bpe", "add_bos": None}


def llama2() -> tuple[Folder, dict[str, Any]]:
    """SentencePiece: merges in the folder, scores in the GGUF file; a padding token without an output."""
    folder = {
        "tokenizer.json": {
            "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(PIECES)}, "merges": ["▁ t"]},
            "added_tokens": added((0, "<unk>"), (1, "<s>"), (2, "</s>"), (len(PIECES), "<pad>")),
            "post_processor": template("<s>"),
        },
        "tokenizer_config.json": {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": True},
        "config.json": {"vocab_size": len(PIECES)},
    }
    return folder, {"model": "llama", "pre": "default", "tokens": PIECES, "bos": 1, "eos": 2, "add_bos": True}


def mistral() -> tuple[Folder, dict[str, Any]]:
    """The same without files beside it, and a GGUF file that does not say whether it adds a first token."""
    folder, file = llama2()
    return {"tokenizer.json": folder["tokenizer.json"], "config.json": folder["config.json"]}, file | {"add_bos": None}


def gemma() -> tuple[Folder, dict[str, Any]]:
    """Runs of spaces as added tokens, which a GGUF file spells with spaces; a place for images in one of them."""
    folder, file = llama2()
    pieces = [*PIECES, "▁▁"]
    folder["tokenizer.json"]["model"]["vocab"] = {text: i for i, text in enumerate(pieces)}
    folder["tokenizer.json"]["added_tokens"] = added((len(pieces), "<image_soft_token>"))
    folder["config.json"] = {"text_config": {"vocab_size": len(pieces) + 64}}
    return folder, file | {"tokens": [*PIECES, "  "]}


def unigram() -> tuple[Folder, dict[str, Any]]:
    """A Unigram model lists pieces with their scores."""
    folder, file = llama2()
    folder["tokenizer.json"]["model"] = {"type": "Unigram", "vocab": [[text, -1.0] for text in PIECES]}
    return folder, file


FAMILIES = {family.__name__: family for family in (qwen, llama3, llama2, mistral, gemma, unigram)}


def write_folder(path: Path, content: Folder) -> Path:
    path.mkdir()
    for name, value in content.items():
        (path / name).write_text(json.dumps(value), "utf-8")
    return path


def write_gguf(path: Path, content: dict[str, Any]) -> Path:
    with gguf_file(path) as writer:
        writer.add_tokenizer_model(content["model"])
        writer.add_tokenizer_pre(content["pre"])
        writer.add_token_list(content["tokens"])
        writer.add_bos_token_id(content["bos"])
        writer.add_eos_token_id(content["eos"])
        if content["model"] == "llama":
            writer.add_token_scores([-1.0] * len(content["tokens"]))
        if content["add_bos"] is not None:
            writer.add_add_bos_token(content["add_bos"])
    return path


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_and_a_gguf_file_of_one_family_agree(family: str, tmp_path: Path) -> None:
    folder, file = FAMILIES[family]()
    ours = vocabulary(write_folder(tmp_path / family, folder))
    theirs = vocabulary(write_gguf(tmp_path / "other.gguf", file))
    assert ours.difference(theirs) is None
    assert ours.digest == theirs.digest
    assert (ours.bos is None) == (family == "qwen")


def move(tokens: list[str]) -> None:
    tokens[40], tokens[41] = tokens[41], tokens[40]


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a token moved": (lambda file: move(file["tokens"]), "has another token 40"),
    "a token more": (lambda file: file["tokens"].append("more"), "tokens instead of"),
    "a token less": (lambda file: file.update(tokens=file["tokens"][:-30]), "tokens instead of"),
    "another first token": (lambda file: file.update(bos=5, add_bos=True), "begins a prompt with token 5 instead of"),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_real_difference_has_another_digest_and_a_name(family: str, change: str, tmp_path: Path) -> None:
    folder, file = FAMILIES[family]()
    ours = vocabulary(write_folder(tmp_path / family, folder))
    alter, sentence = CHANGES[change]
    file["tokens"] = list(file["tokens"])
    alter(file)
    theirs = gguf_vocabulary(write_gguf(tmp_path / "other.gguf", file))
    assert ours.digest != theirs.digest
    assert sentence in (ours.difference(theirs) or "")


def test_a_folder_without_a_first_token_differs_from_one_with(tmp_path: Path) -> None:
    folder, file = llama3()
    file["add_bos"] = False
    ours = vocabulary(write_folder(tmp_path / "a", folder))
    theirs = vocabulary(write_gguf(tmp_path / "b.gguf", file))
    assert ours.difference(theirs) == "begins a prompt with no token instead of token 300"


@pytest.mark.parametrize("broken", [{"single": []}, {"single": 3}, {"single": [3]}, {}])
def test_a_broken_template_is_one_sentence(broken: dict[str, Any], tmp_path: Path) -> None:
    folder, _ = llama2()
    folder["tokenizer.json"]["post_processor"] = {"type": "TemplateProcessing", **broken}
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a tokenizer description"):
        vocabulary(write_folder(tmp_path / "broken", folder))
