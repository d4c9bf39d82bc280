"""Vectors of one text in a buffer that grows: the keys and values of an EAGLE head, and the target's states."""

from __future__ import annotations

import torch
from torch import Tensor

MIN_ROWS = 256
"""GrowingRows of the first buffer; it doubles from there."""


class GrowingRows:
    """`length` rows of `planes` vectors each are committed; `put` writes behind them and commits nothing."""

    def __init__(self, planes: int, dim: int, device: torch.device, limit: int) -> None:
        """`limit`: rows beyond which the buffer no longer doubles, but grows to the size needed."""
        self.length = 0
        self._limit = limit
        self._buffer = torch.zeros(planes, 0, dim, device=device)

    def first(self, count: int) -> Tensor:
        """A view of the first rows, [planes, count, dim]."""
        return self._buffer[:, :count]

    def put(self, new: Tensor) -> Tensor:
        """Writes rows [planes, n, dim] behind the committed ones; returns a view of both."""
        end = self.length + new.shape[1]
        self._reserve(end)
        self._buffer[:, self.length : end] = new
        return self.first(end)

    def copy_from(self, other: GrowingRows, count: int) -> None:
        """Replaces all rows by the first ones of another text."""
        self.length = 0
        if count:
            self.put(other.first(count))
            self.length = count

    def _reserve(self, rows: int) -> None:
        capacity = self._buffer.shape[1]
        if rows <= capacity:
            return

        capacity = max(capacity, MIN_ROWS)
        while capacity < rows:
            capacity *= 2
        capacity = max(rows, min(capacity, self._limit))

        grown = self._buffer.new_zeros(self._buffer.shape[0], capacity, self._buffer.shape[2])
        grown[:, : self.length] = self.first(self.length)
        self._buffer = grown
