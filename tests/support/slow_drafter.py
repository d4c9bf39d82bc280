"""The slow, obvious twin of `edgespec.llamacpp.drafter`: every leaf from scratch, token by token, in one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.llamacpp.context import Context, Row


class SlowDrafter:
    """Plain chains in a context of their own; no state between calls except a cache of results."""

    def __init__(self, path: Path, context: int = 1024) -> None:
        self._llama = Context(path, cells=context, sequences=1, batch=32, threads=1)
        self._memo: dict[tuple[int, ...], NDArray[np.float64]] = {}

    def log_probabilities(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        """Logits of the token after `tokens`, shape [vocab_size]."""
        key = tuple(tokens)
        if key not in self._memo:
            self._llama.trim(0, 0)
            for position, token in enumerate(tokens):
                assert self._llama.decode([Row(token, position, (0,), True)])
            logits = self._llama.logits(0).astype(np.float64)
            shifted = logits - logits.max()
            self._memo[key] = shifted - np.log(np.exp(shifted).sum())
        return self._memo[key]

    def check(self, tokens: Sequence[int], proposal: Proposal, tolerance: float) -> None:
        """Asserts that a proposal for the token after `tokens` is right: costs, entropy, no better token omitted."""
        assert list(proposal.costs) == sorted(proposal.costs)
        assert len(set(proposal.tokens)) == len(proposal.tokens) == len(proposal.costs)
        assert self.error(tokens, proposal) <= tolerance

    def error(self, tokens: Sequence[int], proposal: Proposal) -> float:
        """Nats by which a proposal is off: its costs, its entropy, and the best token that it leaves out."""
        expected = self.log_probabilities(tokens)
        costs = np.abs(-expected[list(proposal.tokens)] - proposal.costs)
        entropy = abs(proposal.entropy + float((np.exp(expected) * expected).sum()))
        left_out = np.delete(expected, list(proposal.tokens)).max(initial=-np.inf) + proposal.costs[-1]
        return float(max(costs.max(), entropy, left_out))

    def close(self) -> None:
        """Frees the model."""
        self._llama.close()
