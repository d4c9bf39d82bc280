"""Rows of the target, as a client could be sent them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Softmax:
    """The `RowReader` that returns the log-probability of the token, and the most probable token of its row."""

    def read(self, logits: NDArray[np.floating], token: int) -> tuple[float, int]:
        x = logits.astype(np.float64)
        return float(x[token] - np.log(np.exp(x).sum())), int(x.argmax())
