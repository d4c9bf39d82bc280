"""ggml's formats of weights, as a student trains with them and as a GGUF file holds them.

A format divides a row into blocks of 32 weights. `rounded` returns the values that llama.cpp reads from the file;
`file_bytes` returns the file's bytes. Both follow ggml's reference (`quantize_row_q4_0_ref` in ggml-quants.c), and a
test holds them equal bit by bit. The K-quants were not taken: their scales are found by a search, which takes too long
to be repeated at each step of a training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

BLOCK = 32


def q4_0(weights: Tensor) -> Tensor:
    """Codes 0 to 15 of a scale, which is the value of greatest magnitude divided by -8."""
    blocks = weights.reshape(-1, BLOCK)
    scale = _greatest(blocks).div_(-8)

    codes = (
        (blocks * _inverse(scale))
        .add_(8.5)
        .trunc_()
        .clamp_(
            0,
            15,
        )
    )
    return codes.sub_(8).mul_(_half(scale)).view_as(weights)


def q4_1(weights: Tensor) -> Tensor:
    """Codes 0 to 15 of a scale, above the least value of the block."""
    blocks = weights.reshape(-1, BLOCK)
    least = blocks.amin(-1, keepdim=True)
    most = blocks.amax(-1, keepdim=True)
    scale = (most - least).div_(15)

    codes = (
        (blocks - least)
        .mul_(_inverse(scale))
        .add_(0.5)
        .trunc_()
        .clamp_(
            0,
            15,
        )
    )
    return codes.mul_(_half(scale)).add_(_half(least)).view_as(weights)


def q8_0(weights: Tensor) -> Tensor:
    """Codes -127 to 127 of a scale; a half is rounded away from zero."""
    blocks = weights.reshape(-1, BLOCK)
    scale = (
        blocks.abs()
        .amax(
            -1,
            keepdim=True,
        )
        .div_(127)
    )

    exact = blocks * _inverse(scale)
    sizes = exact.abs()
    whole = sizes.floor()
    codes = whole + (sizes - whole).mul_(2).floor_()
    return codes.mul_(exact.sign_()).mul_(_half(scale)).view_as(weights)


def f16(weights: Tensor) -> Tensor:
    """IEEE half precision."""
    return _half(weights)


def bf16(weights: Tensor) -> Tensor:
    """The upper 16 bits of float32, rounded."""
    return weights.bfloat16().float()


def f32(weights: Tensor) -> Tensor:
    """The weights themselves."""
    return weights


def _greatest(blocks: Tensor) -> Tensor:
    """[n, 1]: the value of greatest magnitude of each block; of two, the first."""
    least = blocks.amin(-1, keepdim=True)
    most = blocks.amax(-1, keepdim=True)
    greatest = torch.where(
        most > -least,
        most,
        least,
    )

    tied = (most == -least).squeeze(-1)
    if tied.any():
        rows = blocks[tied]
        first = rows.abs().argmax(
            -1,
            keepdim=True,
        )
        greatest[tied] = rows.gather(-1, first)

    return greatest


def _inverse(scale: Tensor) -> Tensor:
    """1 / scale, and 0 for a block of zeros."""
    return torch.where(
        scale == 0,
        scale,
        1 / scale,
    )


def _half(values: Tensor) -> Tensor:
    """As a file holds scales: in half precision."""
    return values.half().float()


FORMATS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "q4_0": q4_0,
    "q4_1": q4_1,
    "q8_0": q8_0,
    "f16": f16,
    "bf16": bf16,
    "f32": f32,
}
"""The formats that a student can be trained in."""


def rounded(weights: Tensor, name: str) -> Tensor:
    """[out, in] float32: the weights as llama.cpp reads them from a file in this format."""
    return FORMATS[name](weights)


def file_bytes(weights: Tensor, name: str) -> Any:
    """The bytes of the same weights in a file, as a numpy array [out, bytes of a row]."""
    import gguf

    return gguf.quants.quantize(
        weights.numpy(),
        gguf.GGMLQuantizationType[name.upper()],
    )
