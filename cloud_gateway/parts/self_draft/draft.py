"""The target as its own draft: a pass through some of its layers only (self-speculative decoding, Zhang et al. 2023).

The weights are the target's; keys and values are the draft's own, since a kept layer sees other inputs here than in the
whole model. Each request has one line of them: its committed tokens and the path drafted last. Another path is
evaluated again from where it leaves the line, so that a chain takes one row a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.policies.estimators import UNKNOWN_STEP_S, Latest, StepCurve
from cloud_gateway.core.policies.policy import Points
from cloud_gateway.models.target_model.slots import SlotTable
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.ranking import Asked, best_children
from edgespec.core.errors import ModelError
from edgespec.core.numbers import common_prefix

if TYPE_CHECKING:
    from cloud_gateway.models.target_model.inside import LayersTarget

CATCH_UP_BATCH = 128
"""Tokens of one catch-up pass, as of the GGUF draft."""
STEP_ROWS = 8
"""Rows of a step at most; more are caught up with first, so that no output embedding is computed for them."""


@dataclass(slots=True)
class _Line:
    slot: int
    tokens: list[int]
    """Committed."""
    held: list[int] = field(default_factory=list)
    """Tokens whose keys and values are in the slot: committed ones, and the path drafted last."""


class SelfDraft:
    """A `DraftModel` over layers of a torch target of the Llama family. Used on the engine's thread only."""

    leaves = 1

    def __init__(
        self,
        target: LayersTarget,
        layers: Sequence[int],
        *,
        requests: int,
        catch_up_batch: int = CATCH_UP_BATCH,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`layers`: those kept, counted from 0. Raises ModelError where the target has them not, or skips none."""
        self._layers = target.keeping(layers, requests)
        self._target = target
        self._batch = catch_up_batch
        self._clock = clock
        self._table = SlotTable(requests)
        self._open: dict[Hashable, _Line] = {}
        self.together = requests
        self.passes = 0
        self._step_s = StepCurve({1: UNKNOWN_STEP_S}, provisional=True)
        self._token_s = Latest()
        self._calibrate()

    @property
    def step_s(self) -> float:
        return self._step_s(1)

    @property
    def points(self) -> Points:
        """Of steps of several requests, each with one leaf."""
        return tuple(sorted(self._step_s.points().items()))

    @property
    def token_s(self) -> float:
        return self._token_s.value or self.step_s

    def open(self, request: Hashable, tokens: Sequence[int], scope: bytes = b"") -> int:
        """Begins a request; returns how many tokens' KV is there already. Raises ModelError for one too many."""
        try:
            claim = self._table.claim(tokens, scope)
        except IndexError:
            raise ModelError("the draft serves as many requests as it can") from None
        if claim.donor == claim.slot:
            self._layers.cut(claim.slot, claim.reused)
        else:
            self._layers.copy(claim.slot, claim.donor, claim.reused)
        self._open[request] = _Line(claim.slot, list(tokens), list(tokens[: claim.reused]))
        return claim.reused

    def commit(self, request: Hashable, tokens: Sequence[int]) -> None:
        """The committed tokens grow; what was drafted otherwise is dropped."""
        line = self._open[request]
        line.tokens += tokens
        self._cut(line, line.tokens)

    def backlog(self, request: Hashable) -> int:
        """Committed tokens whose KV is missing; the last one always counts, since its logits are needed."""
        line = self._open[request]
        return max(len(line.tokens) - len(line.held), 1)

    def catch_up(self, request: Hashable, limit: int) -> int:
        line = self._open[request]
        self._read(line, line.tokens[:-1][: len(line.held) + min(limit, self._batch)])
        return max(len(line.tokens) - 1 - len(line.held), 0)

    def draft(self, asked: Sequence[Asked]) -> list[list[Proposal]]:
        """A step over the leaf of each. Raises ModelError where a path is too long."""
        lines = [self._open[one.request] for one in asked]
        new = [self._prepared(line, path) for line, (_, (path,), *_) in zip(lines, asked, strict=True)]
        began = self._clock()
        rows = sum(map(len, new))
        logits = self._evaluate(list(zip(lines, new, strict=True)), head=True)
        if rows == len(asked):
            self._step_s.sample(rows, self._clock() - began)
        return [
            [(one.rank or best_children)(row, one.paths[0], one.width)] for one, row in zip(asked, logits, strict=True)
        ]

    def idle(self) -> None:
        """Nothing: the target's threads are this draft's too."""

    def close(self, request: Hashable) -> None:
        line = self._open.pop(request)
        self._cut(line, line.tokens)
        self._table.extend(line.slot, line.held[len(self._table.held(line.slot)) :])
        self._table.release(line.slot)

    def _prepared(self, line: _Line, path: Sequence[int]) -> list[int]:
        """The tokens that the step evaluates of this line, after those that are caught up with."""
        wanted = [*line.tokens, *path]
        if len(wanted) > self._layers.max_tokens:
            raise ModelError(f"{len(wanted)} tokens are more than the target's context of {self._target.context}")

        self._cut(line, wanted[:-1])
        while len(wanted) - len(line.held) > STEP_ROWS:
            self._read(line, wanted[:-1][: len(line.held) + self._batch])

        return wanted[len(line.held) :]

    def _read(self, line: _Line, upto: Sequence[int]) -> None:
        """Evaluates what the line lacks of these tokens."""
        new = upto[len(line.held) :]
        began = self._clock()
        if new:
            self._evaluate([(line, new)], head=False)
            if len(new) >= STEP_ROWS:
                self._token_s.sample((self._clock() - began) / len(new))

    def _evaluate(self, new: Sequence[tuple[_Line, Sequence[int]]], *, head: bool) -> Sequence[NDArray[np.float32]]:
        """One pass over tokens behind each line; logits after the last of each, or nothing without `head`."""
        logits = self._layers.evaluate([(line.slot, tokens) for line, tokens in new], head=head)
        for line, tokens in new:
            line.held += tokens

        self.passes += 1
        return logits

    def _cut(self, line: _Line, tokens: Sequence[int]) -> None:
        """Keeps of the line what these tokens begin with."""
        length = common_prefix(line.held, list(tokens))
        self._layers.cut(line.slot, length)
        del line.held[length:]

    def _calibrate(self) -> None:
        """Measures the times before the first request, since the controller's first decision uses them."""
        length = min(4 * STEP_ROWS, self._target.context - 1)
        for _ in range(2):  # the second time counts: the first one loads weights
            self._step_s = StepCurve({1: UNKNOWN_STEP_S}, provisional=True)
            self._token_s = Latest()
            self.open(self, [token % self._target.vocab_size for token in range(length)])
            self.catch_up(self, length)
            self.draft([Asked(self, [()])])
            self.close(self)
        self.passes = 0
