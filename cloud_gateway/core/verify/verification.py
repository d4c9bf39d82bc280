"""How tokens are chosen from the target's rows, and local candidates drafted: the two exact methods.

`shared-noise`: Gumbel-max with noise that the seed gives, and candidates ranked with the same noise; one seed gives one
answer. `rejection`: candidates drawn from the draft's distribution and tested with min(1, p/q), by fresh randomness; a
seed gives nothing. Greedy requests need neither, and always go the first way. Both are samples of the target's own
distribution; docs/numerics.md compares how much they accept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Protocol

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.core.verify.interface import Constraint, ConstraintError, Method
from cloud_gateway.core.verify.rejection import RejectionChooser
from cloud_gateway.core.verify.shared_noise import Chooser, Rows
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.ranking import Ranker, Spread
from edgespec.core.protocol.messages import Sampling
from edgespec.core.sampling.logits import GREEDY_BELOW


class Verification(Protocol):
    """Choices and local candidates of one completion."""

    by_match: bool
    """Whether a candidate only counts by being the token that is chosen anyway: then any may be added or left out."""

    def at(self, flat: FlatTree, rows: Rows) -> Callable[[int], int]:
        """The target's token after a row of one verified tree; asked once per row passed, in order of depth."""

    def rank(self, logits: NDArray[np.float32], path: Sequence[int], width: int) -> Proposal:
        """The gateway's own proposal after `path`, from its draft model's raw `logits`."""

    def committed(self, tokens: Sequence[int]) -> None:
        """The answer has grown by these tokens."""


class SharedNoise(Chooser):
    """Chooses for the target, and ranks for the local draft with a `Ranker`, as a worker has it."""

    by_match = True

    def __init__(
        self, sampling: Sampling, prompt: Sequence[int], spread: Spread, constraint: Constraint | None = None
    ) -> None:
        super().__init__(sampling, prompt, constraint)
        self.ranker = Ranker(sampling, prompt, spread=spread, resolved=True)

    def rank(self, logits: NDArray[np.float32], path: Sequence[int], width: int) -> Proposal:
        """As the protocol says; of what the constraint allows, unless it forbids `path` or has no mask yet."""
        allowed = None
        if self.constraint is not None and self.constraint.ready(path):
            with suppress(ConstraintError):
                allowed = self.constraint(path)
        if allowed is not None:
            logits, width = np.where(allowed, logits, -np.inf), min(width, int(allowed.sum()))
        return self.ranker(logits, path, width)

    def committed(self, tokens: Sequence[int]) -> None:
        super().committed(tokens)
        self.ranker.committed(tokens)


def method_of(sampling: Sampling, chosen: Method) -> Method:
    """The method for a request: as chosen, unless it is greedy and needs none."""
    return "shared-noise" if sampling.temperature < GREEDY_BELOW else chosen


def verification(
    sampling: Sampling,
    prompt: Sequence[int],
    constraint: Constraint | None,
    method: Method,
    spread: Spread,
    rng: Callable[[], np.random.Generator],
) -> Verification:
    """What the method needs for one answer; `rng` makes randomness that nobody can foretell.

    `spread` is shared by all requests of a pair of models. Raises ValueError for shared noise without a seed.
    """
    if method == "rejection":
        return RejectionChooser(sampling, prompt, rng(), constraint=constraint)
    return SharedNoise(sampling, prompt, spread, constraint)


def worker_sampling_of(sampling: Sampling, method: Method) -> Sampling:
    """The sampling parameters that go out in `Open`: with a seed only where it improves the worker's draft tokens."""
    return sampling if method == "shared-noise" else replace(sampling, seed=None)


def at_least(tokens: int, ends: AbstractSet[int], chosen: Verification) -> Verification:
    """The method `chosen`, without `ends` among the first `tokens` tokens of the completion."""
    return AtLeast(tokens, ends, chosen) if tokens else chosen


class AtLeast:
    """A method of verification over logits in which the end tokens are removed, as long as the completion is short.

    Removed by position alone, so that the completion does not depend on what was drafted.
    """

    def __init__(self, tokens: int, ends: AbstractSet[int], chosen: Verification) -> None:
        self.by_match = chosen.by_match
        self._left, self._ends, self._chosen = tokens, ends, chosen

    def at(self, flat: FlatTree, rows: Rows) -> Callable[[int], int]:
        """The choices of `Verification.at`."""
        return self._chosen.at(flat, _WithoutEnds(rows, flat, self._left, self._ends) if self._left > 0 else rows)

    def rank(self, logits: NDArray[np.float32], path: Sequence[int], width: int) -> Proposal:
        """The candidates of `Verification.rank`."""
        return self._chosen.rank(_without(logits, self._ends) if len(path) < self._left else logits, path, width)

    def committed(self, tokens: Sequence[int]) -> None:
        self._left -= len(tokens)
        self._chosen.committed(tokens)


class _WithoutEnds:
    """Rows of one tree, of which those of fewer than `left` tokens after the committed ones have no end token."""

    def __init__(self, rows: Rows, flat: FlatTree, left: int, ends: AbstractSet[int]) -> None:
        self._rows, self._depths, self._left, self._ends = rows, flat.depths, left, ends

    @property
    def argmax(self) -> Sequence[int]:
        """The most probable token of each row; logits are read only of rows at whose top an end token was."""
        likeliest = list(self._rows.argmax)
        for row, token in enumerate(likeliest):
            if token in self._ends and self._too_early(row):
                likeliest[row] = int(self.logits(row).argmax())
        return likeliest

    def logits(self, row: int) -> NDArray[np.float32]:
        """Shape [vocab_size]."""
        raw = self._rows.logits(row)
        return _without(raw, self._ends) if self._too_early(row) else raw

    def _too_early(self, row: int) -> bool:
        """Whether a completion that ended after this row would have too few tokens."""
        return self._depths[row] < self._left


def _without(logits: NDArray[np.float32], ends: AbstractSet[int]) -> NDArray[np.float32]:
    found = logits.copy()
    found[[token for token in ends if token < len(found)]] = -np.inf
    return found
