"""Models that are made and listed: layers that are dropped, and formats that are written."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from edgespec.core.errors import ConfigError, ModelError
from edgespec.llamacpp.convert import count_loaded_layers, requantise
from edgespec.models.drafts import drop_layers, make_draft
from tests.support.tiny_gguf import gguf_file


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("CACHE", "CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{variable}_HOME", str(tmp_path / variable.lower()))
    return tmp_path


ARRAYS = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A GGUF file of four layers that nothing runs, with a list that has one entry per layer."""
    path = tmp_path / "small.gguf"
    with gguf_file(path) as writer:
        writer.add_block_count(4)
        writer.add_array("llama.attention.head_count_kv", [1, 2, 3, 4])
        writer.add_array("tokenizer.ggml.scores", [0.5, 1.5, 2.5, 3.5])  # as long as there are layers, but not theirs
        writer.add_array("tokenizer.ggml.tokens", ["a", "b", "c", "é"])
        writer.add_bool("tokenizer.ggml.add_bos_token", False)
        writer.add_tensor("token_embd.weight", np.arange(8, dtype=np.float32).reshape(4, 2))
        for layer in range(4):
            writer.add_tensor(f"blk.{layer}.attn_q.weight", np.full((2, 2), layer, dtype=np.float16))
    return path


def field(path: Path, key: str) -> object:
    found = gguf.GGUFReader(path).get_field(key)
    assert found is not None, key
    return found.contents()


def test_the_layers_that_stay_are_renumbered_and_their_lists_follow(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    assert drop_layers(small, out, {1, 2}) == 2
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(out).tensors}
    assert {name: float(data[0][0]) for name, data in tensors.items() if name.startswith("blk.")} == {
        "blk.0.attn_q.weight": 0.0,
        "blk.1.attn_q.weight": 3.0,
    }
    assert field(out, "llama.block_count") == 2
    assert field(out, "llama.attention.head_count_kv") == [1, 4]
    assert field(out, "tokenizer.ggml.scores") == [0.5, 1.5, 2.5, 3.5]
    assert field(out, "tokenizer.ggml.tokens") == ["a", "b", "c", "é"]
    assert field(out, "tokenizer.ggml.add_bos_token") is False


@pytest.mark.parametrize("layers", [{4}, {-1}, {0, 1, 2, 3}])
def test_layers_that_cannot_be_dropped_are_refused_by_range(small: Path, tmp_path: Path, layers: set[int]) -> None:
    with pytest.raises(ConfigError, match="0 to 3"):
        make_draft(small, tmp_path / "out.gguf", layers)
    assert not (tmp_path / "out.gguf").exists()


def test_a_draft_that_llama_cpp_does_not_load_never_appears(small: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="llama.cpp does not load"):
        make_draft(small, tmp_path / "out.gguf", {1})
    assert [path.name for path in tmp_path.iterdir()] == ["small.gguf"]


def test_a_truncated_model_is_refused(quantised_model: Path, tmp_path: Path) -> None:
    source = tmp_path / "cut.gguf"
    with quantised_model.open("rb") as file:
        source.write_bytes(file.read(20_000_000))
    with pytest.raises(ModelError, match="not a usable GGUF file"):
        make_draft(source, tmp_path / "out.gguf", {10})


@pytest.mark.live
def test_the_dropped_model_differs_only_in_the_missing_layer(quantised_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft.gguf"
    assert make_draft(quantised_model, out, [10]) == 29
    assert count_loaded_layers(out) == 29
    source = gguf.GGUFReader(quantised_model)
    draft = gguf.GGUFReader(out)
    originals = {tensor.name: tensor for tensor in source.tensors}
    assert len(draft.tensors) == len(originals) - 9
    for tensor in draft.tensors:
        name = tensor.name
        if name.startswith("blk."):
            _, layer, rest = name.split(".", 2)
            name = f"blk.{int(layer) + (int(layer) >= 10)}.{rest}"
        assert tensor.tensor_type == originals[name].tensor_type
        assert np.array_equal(tensor.data, originals[name].data), tensor.name
    changed = {key for key in source.fields if field_bytes(source, key) != field_bytes(draft, key)}
    assert changed == {"llama.block_count", "GGUF.tensor_count"}
    assert set(source.fields) == set(draft.fields)


def field_bytes(reader: gguf.GGUFReader, key: str) -> bytes:
    """A metadata entry as it stands in the file: name, types and every item."""
    return b"".join(part.tobytes() for part in reader.fields[key].parts)


@pytest.mark.live
def test_requantising_keeps_the_tokenizer_and_changes_the_format(quantised_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "q8.gguf"
    requantise(quantised_model, out, "q8_0")
    source = gguf.GGUFReader(quantised_model)
    draft = gguf.GGUFReader(out)
    formats = {tensor.name: tensor.tensor_type.name for tensor in draft.tensors}
    assert formats["blk.0.attn_q.weight"] == "Q8_0"
    for key in ARRAYS:
        assert field_bytes(source, key) == field_bytes(draft, key)
    assert count_loaded_layers(out) == 30
