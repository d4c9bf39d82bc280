"""The rows of one verified tree, as views of llama.cpp's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.models.target_model.slots import HostEntropy, argmax_on_host


class LlamaCppVerified:
    """One tree's result: a view of llama.cpp's logits, which can be read until the target's next pass."""

    def __init__(
        self,
        logits: NDArray[np.float32],
        valid: Callable[[], bool],
        entropy: HostEntropy,
    ) -> None:
        """`logits`: [n, vocab_size]; `entropy`: the target's."""
        self._logits = logits
        self._valid = valid
        self._entropy = entropy
        self.argmax: Sequence[int] = argmax_on_host(logits)

    def entropy(self, row: int) -> float:
        """Nats, after one row. Raises RuntimeError after a further pass."""
        return self._entropy(self.logits(row), self.argmax[row])

    def logits(self, row: int) -> NDArray[np.float32]:
        """Raw logits after one row, [vocab_size]; read-only. Raises RuntimeError after a further pass."""
        if not self._valid():
            raise RuntimeError("these logits were overwritten by a further pass of the target")
        return self._logits[row]
