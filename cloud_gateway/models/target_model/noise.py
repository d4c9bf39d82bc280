"""The shared noise in torch, on any device: the hash bits that `edgespec.core.sampling.gumbel` specifies.

torch lacks unsigned 64-bit arithmetic on some devices, so int64 is used: products and sums wrap modulo 2**64 in the
same way, and an arithmetic shift with its copied sign bits masked is the logical one. The gateway chooses tokens in
numpy; these functions rank or preselect tokens on the device of the logits.
"""

from __future__ import annotations

import torch

from edgespec.core.sampling.gumbel import GAMMA, MIX_1, MIX_2, row_key


def _signed(x: int) -> int:
    """The int64 with the same bits as the unsigned `x`."""
    return x - 2**64 if x >= 2**63 else x


def _shift_right(x: torch.Tensor, by: int) -> torch.Tensor:
    return (x >> by) & (2 ** (64 - by) - 1)


def hash_bits_torch(seed: int, position: int, tokens: torch.Tensor) -> torch.Tensor:
    """64 hash bits per token as int64, on the device of `tokens`, int64 of any shape."""
    x = (tokens + 1) * _signed(GAMMA) + _signed(row_key(seed, position))
    x = (x ^ _shift_right(x, 30)) * _signed(MIX_1)
    x = (x ^ _shift_right(x, 27)) * _signed(MIX_2)
    return torch.bitwise_xor(x, _shift_right(x, 31))


def uniform_torch(bits: torch.Tensor) -> torch.Tensor:
    """The upper 52 bits as float64 in (0, 1), equal to numpy's."""
    return (_shift_right(bits, 12).to(torch.float64) + 0.5) * 2.0**-52


def gumbel_torch(seed: int, position: int, tokens: torch.Tensor) -> torch.Tensor:
    """The noise in nats, float64; equals numpy's up to the rounding of two logarithms."""
    return -torch.log(-torch.log(uniform_torch(hash_bits_torch(seed, position, tokens))))
