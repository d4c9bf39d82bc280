"""A depth-expanded target computes the same function to the last bit, with the same tokenizer, in both formats."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch

from edgespec.shared.hf_vocabulary import hf_vocabulary
from edgespec.shared.vocabfiles import gguf_vocabulary
from edgespec_lab import deep_target
from edgespec_lab.deep_target import deepen_folder, deepen_gguf
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import load_tiny, make_tiny_target, plain_logits

TOKENS = list(range(8, 40))


def test_a_deep_folder_gives_bit_equal_logits_from_more_blocks(tmp_path: Path) -> None:
    plain = make_tiny_target(tmp_path / "plain", layers=2)
    deepen_folder(plain, tmp_path / "deep", 3)
    one = load_tiny(plain)
    other = load_tiny(tmp_path / "deep")
    assert torch.equal(plain_logits(one, TOKENS), plain_logits(other, TOKENS))
    assert (one.config.num_hidden_layers, other.config.num_hidden_layers) == (2, 6)
    assert hf_vocabulary(plain).digest == hf_vocabulary(tmp_path / "deep").digest
    layers = other.model.layers
    assert [bool(layer.mlp.down_proj.weight.any()) for layer in layers] == [True, False, False] * 2
    assert all(bool(layer.mlp.up_proj.weight.any()) for layer in layers), "the added blocks cost a block's work"


def test_a_deep_gguf_gives_bit_equal_logits_and_the_same_tokenizer(tmp_path: Path) -> None:
    plain = make_tiny_gguf(tmp_path / "plain.gguf")
    deep = tmp_path / "deep.gguf"
    deepen_gguf(plain, deep, 3)
    one, other = (deep_target._llama_logits(path, [TOKENS])[0] for path in (plain, deep))
    assert np.array_equal(one, other)
    assert gguf_vocabulary(plain).digest == gguf_vocabulary(deep).digest
    assert len([t for t in gguf.GGUFReader(deep).tensors if "ffn_up" in t.name]) == 6
