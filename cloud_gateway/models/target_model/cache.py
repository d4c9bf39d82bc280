"""The KV cache of one slot: buffers that are written in place, and kept along one path of a tree by compaction.

All planes of one shape (a layer has two, its keys and its values) share one tensor, so that `keep` is one gather for
all layers together rather than two for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

MIN_ENTRIES = 256
"""Entries of a slot's first buffer; it doubles from there."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Keys are [heads, entries, key_dim] in one layer, values [heads, entries, value_dim]."""

    heads: int
    key_dim: int
    value_dim: int


class SlotKv:
    """Keys and values of one slot's tokens. `length` entries are committed; a forward pass writes behind them."""

    def __init__(
        self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device, limit: int = 2**20
    ) -> None:
        """`limit`: entries beyond which the buffers no longer double, but grow to the size needed."""
        self.length = 0
        self.capacity = 0
        self.limit, self._dtype, self._device = limit, dtype, device
        planes = [(s.heads, dim) for s in shapes for dim in (s.key_dim, s.value_dim)]
        self._groups = {
            shape: [i for i, plane in enumerate(planes) if plane == shape] for shape in dict.fromkeys(planes)
        }
        self._stacks: list[Tensor] = []
        self.planes: list[Tensor] = []
        """Keys of layer i at 2i, values at 2i + 1, each [heads, capacity, dim]."""
        self.layers: list[Tensor] = []
        """Keys and values of layer i together, [2 · heads, capacity, dim]; empty where the layers' shapes differ."""

    def reserve(self, rows: int) -> None:
        """Makes room for `rows` entries behind the committed ones. Views taken before become invalid."""
        needed = self.length + rows
        if needed <= self.capacity:
            return
        capacity = max(MIN_ENTRIES, self.capacity)
        while capacity < needed:
            capacity *= 2
        capacity = max(needed, min(capacity, self.limit))
        old, self._stacks = self._stacks, []
        self.planes = [torch.empty(0)] * sum(map(len, self._groups.values()))
        for index, ((heads, dim), members) in enumerate(self._groups.items()):
            stack = torch.zeros(len(members), heads, capacity, dim, dtype=self._dtype, device=self._device)
            if old:
                stack[:, :, : self.length] = old[index][:, :, : self.length]
            self._stacks.append(stack)
            for plane, view in zip(members, stack.unbind(0), strict=True):
                self.planes[plane] = view
        if len(self._stacks) == 1:
            (heads, dim), count = next(iter(self._groups)), len(self.planes) // 2
            self.layers = list(self._stacks[0].view(count, 2 * heads, capacity, dim).unbind(0))
        self.capacity = capacity

    def keep(self, rows: Sequence[int]) -> None:
        """Commits these rows behind the committed entries, in this order, and drops the others.

        `rows` rises strictly, as the rows of one path do, so a row never moves back.
        """
        settled = next((i for i, row in enumerate(rows) if row != i), len(rows))
        if settled < len(rows):
            moved = torch.tensor(rows[settled:], device=self._device) + self.length
            first = self.length + settled
            for stack in self._stacks:
                stack[:, :, first : first + len(moved)] = stack.index_select(2, moved)
        self.length += len(rows)

    def copy_from(self, other: SlotKv, length: int) -> None:
        """Copies the first `length` committed entries of another slot."""
        self.length = 0
        if length:
            self.reserve(length)
            for mine, theirs in zip(self._stacks, other._stacks, strict=True):
                mine[:, :, :length] = theirs[:, :, :length]
            self.length = length


class SlotLayer(CacheLayerMixin):
    """One layer of a slot, for transformers' attention modules."""

    def __init__(self, kv: SlotKv, index: int) -> None:
        super().__init__()
        self._kv, self._index = kv, index
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing: the slot's buffers are made before the pass."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Writes [1, heads, n, dim] behind the committed entries; returns views of those and the new ones."""
        start = self._kv.length
        end = start + key_states.shape[-2]
        keys, values = self._kv.planes[2 * self._index : 2 * self._index + 2]
        keys[:, start:end], values[:, start:end] = key_states[0], value_states[0]
        return keys[None, :, :end], values[None, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of entries that a pass over `query_length` rows attends to, and the position of the first."""
        return self._kv.length + query_length, 0

    def get_seq_length(self) -> int:
        """Committed entries."""
        return self._kv.length

    def get_max_length(self) -> int:
        """-1: the layer has no limit."""
        return -1


def slot_cache(kv: SlotKv, layers: int) -> Cache:
    """The slot as the `past_key_values` of a transformers model."""
    return Cache(layers=[SlotLayer(kv, index) for index in range(layers)])
