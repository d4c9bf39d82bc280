"""Formats: the values a student is trained with are those that llama.cpp reads."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from edgespec.llamacpp.convert import requantise
from edgespec.parts.healing.formats import FORMATS, file_bytes, rounded
from tests.support.tiny_gguf import make_tiny_gguf


def unlike_weights() -> torch.Tensor:
    """Rows of many sizes; blocks of zeros, of equal magnitudes, of one value, and with halves between two codes."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(512, 96, generator=generator) * torch.logspace(-6, 3, 512)[:, None]
    weights[0, :32] = 0
    weights[1, :32] = torch.tensor([1.0, -1.0] * 16)
    weights[2, :32] = torch.tensor([-1.0, 1.0] * 16)
    weights[3, :32] = 0.25
    weights[4, :32] = torch.arange(-16, 16) / 2
    weights[5, :32] = -127 * torch.arange(32) / 62
    return weights


@pytest.mark.parametrize("name", FORMATS)
def test_rounded_weights_equal_ggufs_own_bit_by_bit(name: str) -> None:
    weights = unlike_weights()
    kind = gguf.GGMLQuantizationType[name.upper()]
    read = gguf.quants.dequantize(file_bytes(weights, name), kind)
    assert torch.equal(rounded(weights, name), torch.from_numpy(np.array(read)))


@pytest.mark.parametrize("name", ["q4_0", "q8_0", "f16", "bf16"])
def test_packed_weights_equal_the_bytes_that_llama_cpp_writes(name: str, tmp_path: Path) -> None:
    source = make_tiny_gguf(tmp_path / "source.gguf", hidden=64)
    out = tmp_path / "out.gguf"
    requantise(source, out, name)

    weights = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}
    compared = 0
    for tensor in gguf.GGUFReader(out).tensors:
        if tensor.tensor_type.name.lower() == name:
            ours = file_bytes(torch.from_numpy(np.array(weights[tensor.name].data)), name)
            assert ours.tobytes() == tensor.data.tobytes(), tensor.name
            compared += 1
    assert compared >= 7


def test_rounding_does_not_change_the_weights_it_is_given() -> None:
    for name in FORMATS:
        weights = unlike_weights()
        rounded(weights, name)
        assert torch.equal(weights, unlike_weights()), name
