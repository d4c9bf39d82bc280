"""How a worker reads prompts beside drafting: in batches that take a tenth of a second, in half of the model's time."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.core.drafting.settings import PREFILL_BATCH

MAX_BATCH_S = 0.1
"""Of one batch of catch-up, as the latest was measured: for so long other requests and commits wait."""
FIRST_BATCH = 16
"""Tokens of the first batch, which measures; 75 ms with the slowest format of the demo's draft."""


@dataclass(slots=True)
class Reading:
    """When a batch is due, and its tokens."""

    most: int = PREFILL_BATCH
    """Most tokens of a batch."""
    _token_s: float = 0.0
    """Seconds to read a token in the latest batch; 0 before the first."""
    _drafting_s: float = 0.0
    """Model time that drafting gets before the next batch."""

    @property
    def batch(self) -> int:
        """Tokens of a batch, and the most pending ones that a draft step evaluates with its leaves."""
        return max(min(int(MAX_BATCH_S / self._token_s), self.most), 1) if self._token_s else FIRST_BATCH

    @property
    def due(self) -> bool:
        """Whether drafting has had as much time as the latest batch."""
        return self._drafting_s <= 0

    def read(self, tokens: int, seconds: float) -> None:
        """A batch has been read."""
        self._token_s, self._drafting_s = seconds / max(tokens, 1), seconds

    def drafted(self, seconds: float) -> None:
        """A draft step has ended."""
        self._drafting_s -= seconds
