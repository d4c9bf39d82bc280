"""The gateway's local draft: a GGUF model in llama.cpp, with KV catch-up in limited batches (WANSpec section 4.5)."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.policies.estimators import UNKNOWN_STEP_S, Latest, StepCurve
from cloud_gateway.core.policies.policy import Points
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.ranking import Asked, Rank, TokenPath, best_children
from edgespec.core.drafting.settings import DEFAULTS, MAX_STEP_LEAVES
from edgespec.llamacpp.drafter import Drafter
from edgespec.llamacpp.step_time import measured_curve
from edgespec.shared.threads import ONE_CORE_LEFT, ThreadRule

_CALIBRATION_TOKENS = 32
"""Length of the prompt that is evaluated to measure the model before the first request."""
CATCH_UP_BATCH = 128
"""Tokens of one catch-up pass: half the worker's, since rounds of other requests wait for it."""
_MIN_BATCH = 8
"""Rows from which on a catch-up pass is measured: with fewer, its fixed cost hides the cost of a token."""


class LocalDraft(Drafter):
    """A `DraftModel`: a drafter that measures the times of its passes. Used on the engine's thread only."""

    def __init__(
        self,
        path: Path,
        *,
        context: int,
        requests: int = DEFAULTS.requests,
        leaves: int = 0,
        threads: int = 1,
        thread_rule: ThreadRule = ONE_CORE_LEFT,
        gpu_layers: int = 0,
        catch_up_batch: int = CATCH_UP_BATCH,
        target_vocab_size: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`context`: KV cells shared by `requests` open requests. `leaves`: maximum number of paths in one step; 0:
        `MAX_STEP_LEAVES`, of which policies choose by the measured curve. `catch_up_batch`: maximum tokens of one
        catch-up pass. `target_vocab_size`: entries of the rows that are ranked, if the target has more or fewer
        unused ones.

        Takes a second to measure the model. Raises ModelError and ConfigError as `Drafter` does.
        """
        super().__init__(
            path,
            context=context,
            sequences=leaves or MAX_STEP_LEAVES,
            threads=threads,
            thread_rule=thread_rule,
            gpu_layers=gpu_layers,
            prefill_batch=catch_up_batch,
            requests=requests,
        )
        self._timer = clock
        self._target_vocab_size = target_vocab_size
        self._token_s = Latest()
        self._curve = StepCurve({1: UNKNOWN_STEP_S}, provisional=True)
        self._calibrate()
        self._curve = StepCurve(measured_curve(self, clock))
        self.leaves = self.sequences
        self.passes = 0

    @property
    def step_s(self) -> float:
        return self._curve(1)

    @property
    def points(self) -> Points:
        """The curve that was measured at the start, as the steps since have changed it."""
        return tuple(sorted(self._curve.points().items()))

    @property
    def token_s(self) -> float:
        return self._token_s.value or self.step_s

    def catch_up(self, request: Hashable, limit: int) -> int:
        rows = self.rows
        began = self._timer()
        left = super().catch_up(request, min(limit, self.prefill_batch))
        spent = self._timer() - began

        rows = self.rows - rows
        if rows >= _MIN_BATCH:
            self._token_s.sample(spent / rows)
        return left

    def draft(self, asked: Sequence[Asked]) -> list[list[Proposal]]:
        """One step over the leaves of all these, after as many catch-up passes as it needs.

        Raises DraftMemoryError if a request is too long, or the cells do not suffice for all.
        """
        fitted: list[Asked] = []
        leaves = 0
        for part in asked:
            while self.backlog(part.request) > self.prefill_batch:
                self.catch_up(part.request, self.prefill_batch)
            rank = self._over_targets_vocabulary(part.rank or best_children)
            fitted.append(part._replace(rank=rank))
            leaves += len(set(part.paths))

        rows = self.rows
        began = self._timer()
        proposals = self.step_together(fitted)
        spent = self._timer() - began

        if self.rows - rows == leaves:  # nothing but leaves was evaluated
            self._curve.sample(leaves, spent)
        return proposals

    def _over_targets_vocabulary(self, rank: Rank) -> Rank:
        """`rank` over rows padded or cut to the target's vocabulary, the size of masks and distributions."""
        size = self._target_vocab_size
        if size is None or size == self.vocab_size:
            return rank

        missing = max(size - self.vocab_size, 0)

        def fitted(logits: NDArray[np.float32], path: TokenPath, width: int) -> Proposal:
            if missing:
                row = np.pad(logits, (0, missing), constant_values=-np.inf)
            else:
                row = logits[:size]
            return rank(row, path, width)

        return fitted

    def _calibrate(self) -> None:
        """Measures the times before the first request, since the controller's first decision uses them."""
        length = min(_CALIBRATION_TOKENS, (self.context - 1) // 2)
        self.open(self, [0])
        for _ in range(2):
            # The first round also loads the weights into memory, so only the second one is kept.
            self._token_s = Latest()
            self._curve = StepCurve({1: UNKNOWN_STEP_S}, provisional=True)
            self.commit(self, [token % self.vocab_size for token in range(length)])
            while self.catch_up(self, length):
                pass
            self.draft([Asked(self, [()])])

        self.close(self, keep=False)
