"""Matrix products of the lean forward pass, with what follows them fused in where the library can.

On a CPU oneDNN's packed weights take about half the time of torch's plain `F.linear`, which packs the weights again
at every call, and their time hardly grows from 1 row to 6. torch has no public name for them, but `torch.compile`
uses the same operators. `PlainLinear` is the slow twin, and serves other devices.

The numbers of rows with which a product gives each row the same bits are tested at each start. A library sums in an
order that depends on the number of rows, on the number of threads, and on what the processor has: in bfloat16 with AMX,
in float32 without packed weights on two threads, in others nowhere (dev/decisions/102). So nothing is assumed. An exact
forward pass takes products of at most BLOCK_ROWS rows, and pads each to one of the numbers that passed this test with
this model's shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

PACK_ROWS = 32
"""Rows that a packed layout is chosen for; 4 to 32 give the same layout as far as measured."""


class PlainLinear:
    """y = x Wᵀ + b for x of shape [n, in], and what follows it; torch's own product, on any device."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """`weight`: [out, in]."""
        self.weight = weight
        self.bias = bias
        self.shape = (weight.shape[0], weight.shape[1])
        self.dtype = weight.dtype

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
        self.shape = (weight.shape[0], weight.shape[1])
        self.dtype = weight.dtype
        self._weight = ops._reorder_linear_weight(weight.detach().contiguous(), PACK_ROWS)
        self.bias = None if bias is None else bias.detach()
        self._product = ops._linear_pointwise
        self._binary = ops._linear_pointwise.binary

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


BLOCK_ROWS = 64
"""Rows of one product. More rows at once are hardly faster: 512 of 576 x 1536 in bfloat16 took 0.91 of the time."""
STEPS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, BLOCK_ROWS)
"""Numbers that are tested. A product is padded to the next of them, by at most a quarter beyond four rows."""
MAX_PROBE = 2**26
"""Numbers of a weight of which a copy with other values is tested. The product of a larger one has so many outputs that
another order of summation shows in some of them anyway."""

Run = Callable[[PlainLinear, Tensor, Tensor], Tensor]
"""A product of rows [n, in], with others [n, out] fused in or not."""

KINDS: dict[str, Run] = {
    "plain": lambda linear, x, _: linear(x),
    "silu": lambda linear, x, _: linear.silu(x),
    "times": lambda linear, x, other: linear.times(x, other),
    "plus": lambda linear, x, other: linear.plus(x, other),
}


@dataclass(frozen=True, slots=True)
class RowTest:
    """Results of the test."""

    counts: Sequence[int] = ()
    """Numbers of rows with equal bits, ascending; empty if a row's bits depend on its place or on others' values."""
    threads: int = 0
    """Up to so many threads of those asked for, the bits are the same as with the first number."""

    def __str__(self) -> str:
        return f"{len(self.counts)} of {len(STEPS)} numbers of rows, from {min(self.counts, default=0)} on"

    def padded(self, rows: int) -> int:
        """Rows that a pass over `rows` rows computes."""
        blocks, rest = divmod(rows, BLOCK_ROWS)
        return blocks * BLOCK_ROWS + (next(count for count in self.counts if count >= rest) if rest else 0)


def find_rows(products: Iterable[tuple[str, PlainLinear]], threads: Sequence[int]) -> RowTest:
    """Tests the products of a model, by KINDS, each shape once, with each number of threads, ascending.

    The time is that of about 500 rows of one layer and of the head, for each number of threads.
    """
    different = {(kind, linear.shape, linear.bias is None): (kind, linear) for kind, linear in products}
    torch.set_num_threads(threads[0])
    probes = [_Probe(kind, linear) for kind, linear in different.values()]
    found = set(STEPS)
    usable = 0
    for number in threads:
        torch.set_num_threads(number)
        passed = {count for count in found if all(probe.passes(count) for probe in probes)}
        if BLOCK_ROWS not in passed:
            break
        found = passed
        usable = number

    return RowTest(sorted(found) if usable else (), usable)


class _Probe:
    """Rows for one product, whose true outputs are zero: what comes out is the rounding of its sums."""

    def __init__(self, kind: str, linear: PlainLinear) -> None:
        (outside, inside), dtype = linear.shape, linear.dtype
        random = torch.Generator().manual_seed(1)
        self._run = KINDS[kind]
        self._linear = linear
        self._x = torch.randn(BLOCK_ROWS, inside, generator=random).to(dtype)
        self._others = torch.full((BLOCK_ROWS, outside), float(kind == "times"), dtype=dtype)
        if outside * inside <= MAX_PROBE:
            # Inputs in pairs: equal weights, opposite numbers. At random places, as a sum of halves would be true zero.
            one, other = torch.randperm(inside, generator=random)[: inside // 2 * 2].view(2, -1)
            weight = (torch.randn(outside, inside, generator=random) / inside**0.5).to(dtype)
            weight[:, other], self._x[:, other] = weight[:, one], -self._x[:, one]
            if linear.bias is None:
                bias = None
            else:
                bias = torch.zeros(outside, dtype=dtype)
            self._linear = type(linear)(weight, bias)
        self._bits = self._product(torch.arange(BLOCK_ROWS))
        """For a block of rows, with the number of threads that torch has now; all others are compared with them."""

    def passes(self, count: int) -> bool:
        """Whether the last `count` rows alone have these bits; of a whole block, also in other places and company."""
        rows = torch.arange(BLOCK_ROWS - count, BLOCK_ROWS)
        orders = [rows]
        if count == BLOCK_ROWS:
            orders += [rows.roll(BLOCK_ROWS // 4 + 1), torch.where(rows % 2 == 0, rows, rows.argmax())]
        return all(torch.equal(self._product(order), self._bits[order]) for order in orders)

    def _product(self, rows: Tensor) -> Tensor:
        return self._run(self._linear, self._x[rows], self._others[rows])
