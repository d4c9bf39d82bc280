"""How tokens are chosen from the target's rows, and local candidates drafted: a `Method` for each completion.

The core has one, `shared-noise`: Gumbel-max with noise that the seed gives, and candidates ranked with the same noise,
so that one seed gives one completion. Parts add others. Each must return samples of the target's own distribution.
Greedy requests need no randomness, and always take `shared-noise`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.core.verify.interface import Constraint, ConstraintError
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
        """The completion has grown by these tokens."""


@dataclass(frozen=True, slots=True)
class CompletionStart:
    """One completion before its first token, as a method of verification is given it."""

    sampling: Sampling
    prompt: Sequence[int]
    constraint: Constraint | None
    spread: Spread
    """Shared by all requests of a pair of models."""
    fresh: Callable[[], np.random.Generator]
    """Makes randomness that nobody can predict."""


@dataclass(frozen=True)
class Method:
    """A way of verifying sampled tokens. The engine calls `begin` once for each completion."""

    name: str
    """A value of `policy.verification`, and of `edgespec.verification` in a request."""
    seeded: bool
    """Whether one seed gives one completion. Otherwise workers are sent no seed, and requests may set none."""
    begin: Callable[[CompletionStart], Verification]
    """Raises ValueError if the method needs a seed and there is none."""


class SharedNoise(Chooser):
    """Chooses for the target, and ranks for the local draft with a `Ranker`, as a worker has it."""

    by_match = True

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        spread: Spread,
        constraint: Constraint | None = None,
    ) -> None:
        """Raises ValueError if the temperature asks for noise and there is no seed."""
        super().__init__(sampling, prompt, constraint)
        self.ranker = Ranker(sampling, prompt, spread=spread, resolved=True)

    def rank(self, logits: NDArray[np.float32], path: Sequence[int], width: int) -> Proposal:
        """As the protocol says; of what the constraint allows, unless it forbids `path` or has no mask yet."""
        allowed = None
        if self.constraint is not None and self.constraint.ready(path):
            with suppress(ConstraintError):
                allowed = self.constraint(path)

        if allowed is not None:
            logits = np.where(allowed, logits, -np.inf)
            width = min(width, int(allowed.sum()))
        return self.ranker(logits, path, width)

    def committed(self, tokens: Sequence[int]) -> None:
        super().committed(tokens)
        self.ranker.committed(tokens)


def _shared_noise(start: CompletionStart) -> Verification:
    return SharedNoise(start.sampling, start.prompt, start.spread, start.constraint)


SHARED_NOISE = Method("shared-noise", seeded=True, begin=_shared_noise)
BUILT_IN: Mapping[str, Method] = {SHARED_NOISE.name: SHARED_NOISE}
"""Methods of the core, by name."""


def method_of(sampling: Sampling, chosen: Method) -> Method:
    """The method for a request: as chosen, unless it is greedy and needs none."""
    if sampling.temperature < GREEDY_BELOW:
        return SHARED_NOISE
    return chosen


def worker_sampling_of(sampling: Sampling, method: Method) -> Sampling:
    """The sampling parameters that go out in `Open`: with a seed only if it improves the worker's draft tokens."""
    if method.seeded:
        return sampling
    return replace(sampling, seed=None)


def at_least(tokens: int, ends: AbstractSet[int], chosen: Verification) -> Verification:
    """The method `chosen`, without `ends` among the first `tokens` tokens of the completion."""
    if not tokens:
        return chosen
    return AtLeast(tokens, ends, chosen)


class AtLeast:
    """A method of verification over logits in which the end tokens are removed, as long as the completion is short.

    Removed by position alone, so that the completion does not depend on what was drafted.
    """

    def __init__(self, tokens: int, ends: AbstractSet[int], chosen: Verification) -> None:
        self.by_match = chosen.by_match
        self._chosen = chosen
        self._ends = ends
        self._left = tokens

    def at(self, flat: FlatTree, rows: Rows) -> Callable[[int], int]:
        """The choices of `Verification.at`."""
        if self._left > 0:
            rows = _WithoutEnds(rows, flat, self._left, self._ends)
        return self._chosen.at(flat, rows)

    def rank(self, logits: NDArray[np.float32], path: Sequence[int], width: int) -> Proposal:
        """The candidates of `Verification.rank`."""
        if len(path) < self._left:
            logits = _without(logits, self._ends)
        return self._chosen.rank(logits, path, width)

    def committed(self, tokens: Sequence[int]) -> None:
        self._left -= len(tokens)
        self._chosen.committed(tokens)


class _WithoutEnds:
    """Rows of one tree, of which those of fewer than `left` tokens after the committed ones have no end token."""

    def __init__(self, rows: Rows, flat: FlatTree, left: int, ends: AbstractSet[int]) -> None:
        self._rows = rows
        self._depths = flat.depths
        self._left = left
        self._ends = ends

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
        logits = self._rows.logits(row)
        if self._too_early(row):
            return _without(logits, self._ends)
        return logits

    def _too_early(self, row: int) -> bool:
        """Whether a completion that ended after this row would have too few tokens."""
        return self._depths[row] < self._left


def _without(logits: NDArray[np.float32], ends: AbstractSet[int]) -> NDArray[np.float32]:
    rest = logits.copy()
    rest[[token for token in ends if token < len(rest)]] = -np.inf
    return rest
