"""Matrix products of the lean forward pass, with what follows them fused in where the library can.

On a CPU oneDNN's packed weights take about half the time of torch's plain `F.linear`, which packs the weights again
at every call, and their time hardly grows from 1 row to 6. torch has no public name for them, but `torch.compile`
uses the same operators. `PlainLinear` is the slow twin, and serves other devices.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

PACK_ROWS = 32
"""Rows that a packed layout is chosen for; 4 to 32 give the same layout as far as measured."""


class PlainLinear:
    """y = x Wᵀ + b for x of shape [n, in], and what follows it; torch's own product, on any device."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """`weight`: [out, in]."""
        self.weight, self.bias = weight, bias
        self.shape, self.dtype = (weight.shape[0], weight.shape[1]), weight.dtype

    def __call__(self, x: Tensor) -> Tensor:
        """y."""
        return F.linear(x, self.weight, self.bias)

    def silu(self, x: Tensor) -> Tensor:
        """y · sigmoid(y)."""
        return F.silu(self(x))

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """y · other, elementwise."""
        return self(x) * other

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """y + other."""
        return self(x) + other


class PackedLinear(PlainLinear):
    """oneDNN's product with weights in its own layout, on a CPU. Holds a copy; the plain weights may be freed."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        ops = torch.ops.mkldnn
        self.shape, self.dtype = (weight.shape[0], weight.shape[1]), weight.dtype
        self._weight = ops._reorder_linear_weight(weight.detach().contiguous(), PACK_ROWS)
        self.bias = None if bias is None else bias.detach()
        self._product, self._binary = ops._linear_pointwise, ops._linear_pointwise.binary

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x, self._weight, self.bias, "none", [], "")

    def silu(self, x: Tensor) -> Tensor:
        return self._product(x, self._weight, self.bias, "swish", [], "")

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        return self._binary(x, other, self._weight, self.bias, "mul")

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        return self._binary(x, other, self._weight, self.bias, "add")


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this machine has packed products for this type of number."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
