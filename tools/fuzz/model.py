"""A model whose logits are looked up by the last tokens: ordinary rows and extreme ones, many a millisecond."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from cloud_gateway.core.verify.accept import FlatTree
from tools.doubles.model import Logits

ROWS = 256
LARGEST = float(np.finfo(np.float32).max)


class TableModel:
    """Logits after a path: one of `ROWS` rows, chosen by its length and its last two tokens."""

    def __init__(self, vocab_size: int, seed: int, extreme: bool) -> None:
        """`extreme`: every second row has equal, huge or infinite logits."""
        rng = np.random.default_rng([vocab_size, seed])
        self.vocab_size = vocab_size
        self._rows = rng.normal(0, 2.5, (ROWS, vocab_size)).astype(np.float32)
        if extreme:
            for row in self._rows[::2]:
                _spoil(row, rng)
        self._rows.flags.writeable = False  # readers must not change a row
        self._argmax = [int(row.argmax()) for row in self._rows]

    def index(self, tokens: Sequence[int]) -> int:
        """Of the row after these tokens, at least one."""
        return (tokens[-1] * 31 + (tokens[-2] * 17 if len(tokens) > 1 else 0) + len(tokens) * 7) % ROWS

    def logits(self, tokens: Sequence[int]) -> Logits:
        """Raw logits after these tokens, shape [vocab_size]."""
        row: Logits = self._rows[self.index(tokens)]
        return row

    def argmax(self, tokens: Sequence[int]) -> int:
        """The largest of them; of equals the lowest."""
        return self._argmax[self.index(tokens)]

    def entropy(self, tokens: Sequence[int]) -> float:
        """Made up, between 0 and 5 nats: that of extreme logits may be no number."""
        return self.index(tokens) % 50 / 10


def _spoil(row: Logits, rng: np.random.Generator) -> None:
    """Makes a row extreme, in place. None has what is not a number, which only a broken model gives."""
    some = rng.random(len(row)) < 0.3
    match int(rng.integers(7)):
        case 0:
            row[:] = rng.choice([0.0, 5.0, -LARGEST, LARGEST, -np.inf])
        case 1:
            row[some] = -np.inf
        case 2:
            row[some] = np.inf
        case 3:
            row *= np.float32(1e37)
        case 4:
            row[some] = LARGEST
        case 5:
            row[:] = np.round(row)  # many equals
        case 6:
            row *= np.float32(1e-40)  # subnormal


@functools.cache
def table(vocab_size: int, seed: int, extreme: bool) -> TableModel:
    """The same model each time, made once in a process."""
    return TableModel(vocab_size, seed, extreme)


ALONE = FlatTree([-1], [-1], [0])
"""A tree without candidates."""
