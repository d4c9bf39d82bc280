"""The gateway's local draft: a GGUF model in llama.cpp, with KV catch-up in limited batches (WANSpec section 4.5)."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.estimators import Ewma
from edgespec.calibrate import affordable_leaves, step_curve
from edgespec.core.children import Rank, TokenPath, best_children
from edgespec.core.drafting import Proposal
from edgespec.drafter import Drafter

MOST_LEAVES = 16
_WEIGHT = 0.2
"""Of the newest measurement against all former ones."""
_CALIBRATION_TOKENS = 32
_LEAST_BATCH = 8
"""Tokens from which on a batch says what a token of a batch costs."""

Result = TypeVar("Result")


class LocalDraft:
    """A `DraftModel` that counts its passes and measures what they cost. Lives on the engine's thread."""

    def __init__(
        self,
        path: Path,
        *,
        context: int = 8192,
        requests: int = 8,
        leaves: int = 0,
        threads: int = 1,
        prefill_batch: int = 128,
        prefix_cache: bool = True,
        target_vocab_size: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`context`: KV cells shared by `requests` open requests; `leaves`: most paths of one step; 0: as
        many as cost hardly more than one, as measured; `prefill_batch`: most tokens of one catch-up pass;
        `target_vocab_size`: entries of the rows that are ranked, where the target has more or fewer unused ones.

        Takes a second to measure the model. Raises ModelError and ConfigError as `Drafter` does.
        """
        self._drafter = Drafter(
            path,
            context=context,
            sequences=leaves or MOST_LEAVES,
            threads=threads,
            prefill_batch=prefill_batch,
            requests=requests,
        )
        self._prefix_cache, self._clock, self._target_vocab_size = prefix_cache, clock, target_vocab_size
        self.tokenizer_digest, self.vocab_size = self._drafter.tokenizer_digest, self._drafter.vocab_size
        self.context = self._drafter.context
        """Most tokens of one request."""
        self.passes = 0
        self.spent_s = 0.0
        """Time of all passes so far."""
        self._step_s, self._token_s = Ewma(_WEIGHT), Ewma(_WEIGHT)
        self._calibrate()
        self.leaves = leaves or affordable_leaves(step_curve(self._drafter, clock))

    @property
    def step_s(self) -> float:
        """Seconds of one draft step with nothing to catch up, as measured."""
        return self._step_s.value or 0.0

    @property
    def token_s(self) -> float:
        """Seconds per token of a catch-up batch, as measured."""
        return self._token_s.value or self.step_s

    def open(self, request: Hashable, tokens: Sequence[int], scope: bytes = b"") -> int:
        """Begins a request; returns how many tokens' KV is there already. Raises DraftMemoryError."""
        return self._drafter.open(request, tokens, scope)

    def commit(self, request: Hashable, tokens: Sequence[int]) -> int:
        """The committed tokens grow; returns how many had been evaluated on a path that was right."""
        return self._drafter.commit(request, tokens)

    def close(self, request: Hashable) -> None:
        """Ends a request; its KV may serve later prompts of its scope that begin alike."""
        self._drafter.close(request, keep=self._prefix_cache)

    def owed(self, request: Hashable) -> int:
        """Committed tokens whose KV is missing; the last one among them costs nothing beyond the next step itself."""
        return self._drafter.pending(request)

    def step_cost_s(self, request: Hashable) -> float:
        """Expected seconds of the next `draft`, its catch-up included."""
        return self.step_s + max(self.owed(request) - 1, 0) * self.token_s

    def catch_up(self, request: Hashable, limit: int) -> int:
        """Evaluates at most `limit` of the tokens owed, the last one aside, in one pass; returns how many are left."""
        limit = min(limit, self._drafter.prefill_batch)
        rows, spent, left = self._timed(lambda: self._drafter.catch_up(request, limit))
        if rows >= _LEAST_BATCH:
            self._token_s.sample(spent / rows)
        return left

    def draft(
        self, request: Hashable, paths: Sequence[TokenPath], width: int = 1, rank: Rank = best_children
    ) -> list[Proposal]:
        """One step over these leaves (tokens below the committed ones), after as many catch-up passes as it needs.

        `rank` makes at most `width` guesses after each. Raises DraftMemoryError where the request has become too long.
        """
        while self.owed(request) > self._drafter.prefill_batch:
            self.catch_up(request, self._drafter.prefill_batch)
        fitted = self._over_targets_vocabulary(rank)
        rows, spent, proposals = self._timed(lambda: self._drafter.step(request, paths, width, fitted))
        if rows == 1:
            self._step_s.sample(spent)
        return proposals

    def _over_targets_vocabulary(self, rank: Rank) -> Rank:
        """`rank` for rows as long as the target's: what it compares them with (masks, distributions) is as long."""
        size = self._target_vocab_size
        if size is None or size == self.vocab_size:
            return rank
        missing = max(size - self.vocab_size, 0)

        def fitted(logits: NDArray[np.float32], path: TokenPath, width: int) -> Proposal:
            row = np.pad(logits, (0, missing), constant_values=-np.inf) if missing else logits[:size]
            return rank(row, path, width)

        return fitted

    def shutdown(self) -> None:
        """Frees the model."""
        self._drafter.shutdown()

    def _calibrate(self) -> None:
        """Measures before the first request, since the controller's first decision rests on it."""
        length = min(_CALIBRATION_TOKENS, (self.context - 1) // 2)
        self.open(self, [0])
        for _ in range(2):
            # The first round also reads the weights in, so that only the second one counts.
            self._step_s, self._token_s = Ewma(_WEIGHT), Ewma(_WEIGHT)
            self.commit(self, [token % self.vocab_size for token in range(length)])
            while self.catch_up(self, length):
                pass
            self.draft(self, [()])
        self._drafter.close(self, keep=False)
        self.passes, self.spent_s = 0, 0.0

    def _timed(self, work: Callable[[], Result]) -> tuple[int, float, Result]:
        """Runs passes and returns the rows evaluated, the seconds taken, and the result."""
        rows, passes, began = self._drafter.rows, self._drafter.passes, self._clock()
        result = work()
        spent = self._clock() - began
        self.passes += self._drafter.passes - passes
        self.spent_s += spent
        return self._drafter.rows - rows, spent, result
