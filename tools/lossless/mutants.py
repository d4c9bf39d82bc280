"""Planted faults. Each is one or two methods of the real code replaced, and each must be caught by the same test.

A fault of the shared noise is also caught where an answer changes with what was drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cloud_gateway.core.verify.shared_noise import Chooser, Rows
from cloud_gateway.parts.rejection.sampling import NONE, LocalDraftDistribution, Rejection
from edgespec.core.sampling.gumbel import gumbel_all
from edgespec.core.sampling.logits import Candidates
from tools.lossless import classic, shared_noise
from tools.lossless.cases import chunks, fit
from tools.lossless.classic import Floats
from tools.lossless.scene import RULES, Scene
from tools.lossless.shared_noise import Tokens
from tools.lossless.statistics import Fit

CAUGHT_BELOW = 1e-6
"""A mutant's p-value below this counts as caught; honest cases may not come near it."""


class PenaltyIgnoresPath(Chooser):
    """Penalties count the committed answer, but not the tree path above the row."""

    def candidates(self, rows: Rows, row: int, path: Sequence[int]) -> Candidates:
        return super().candidates(rows, row, ())


class NoiseOfTheRound(Chooser):
    """Every row of a tree uses the noise of the round's first position."""

    def position(self, path: Sequence[int]) -> int:
        return self.length


class PositionOffByOne(Chooser):
    """Below the first level the position is one too small, so that two positions share their noise."""

    def position(self, path: Sequence[int]) -> int:
        return self.length + max(len(path) - 1, 0)


class SharedNoiseUnderTest(Rejection):
    """Drafts are drawn, and residuals sampled, by the shared noise, where fresh randomness is needed."""

    _noise: Floats
    _left: Floats

    def draw(self, q: Floats, width: int) -> LocalDraftDistribution:
        seeds = self._rng.integers(0, 2**63, (len(q), 1), dtype=np.uint64)
        self._noise = gumbel_all(seeds, 0, q.shape[1])
        return LocalDraftDistribution(q, np.argsort(-(_log(q) + self._noise), axis=1)[:, :width])

    def token(self, p: Floats, draft: LocalDraftDistribution) -> Tokens:
        result = super().token(p, draft)
        rejected = ~(draft.siblings == result[:, None]).any(axis=1)
        result[rejected] = np.argmax(_log(self._left) + self._noise[rejected], axis=1)
        return result

    def sample(self, p: Floats) -> Tokens:
        self._left = p
        return super().sample(p)


class ResidualNotNormalised(Rejection):
    """After a rejection the rest of p keeps its smaller mass, so that later siblings are accepted too rarely."""

    def residual(self, p: Floats, q: Floats) -> Floats:
        return np.maximum(p - q, 0)


class ResidualIsTarget(Rejection):
    """After a rejection p is tried again as it was."""

    def residual(self, p: Floats, q: Floats) -> Floats:
        return p


class SiblingsWithReplacement(Rejection):
    """Siblings are drawn independently, and tested as if each had been drawn from what the others left."""

    def draw(self, q: Floats, width: int) -> LocalDraftDistribution:
        return LocalDraftDistribution(q, np.stack([self.sample(q) for _ in range(width)], axis=1))


class QNotRenormalised(Rejection):
    """q without the rejected sibling keeps its smaller mass, so that later siblings are accepted too often."""

    def without(self, q: Floats, tokens: Tokens) -> Floats:
        left, trials = q.copy(), np.flatnonzero(tokens != NONE)
        left[trials, tokens[trials]] = 0
        return left


class BestInsteadOfDrawn(Rejection):
    """The draft's most probable tokens are tested as if they had been drawn from q."""

    def draw(self, q: Floats, width: int) -> LocalDraftDistribution:
        return LocalDraftDistribution(q, np.argsort(-q, axis=1)[:, :width])


class SuggestionTestedAsDrawn(Rejection):
    """A candidate that lookup found is tested as if the draft had drawn it from q."""

    def draw(self, q: Floats, width: int) -> LocalDraftDistribution:
        drawn = super().draw(q, width).siblings
        found = np.where((drawn == shared_noise.FAVOURITE).any(axis=1), drawn[:, 0], shared_noise.FAVOURITE)
        return LocalDraftDistribution(q, np.concatenate([found[:, None], drawn[:, 1:]], axis=1))


class AgreementAccepted(Rejection):
    """A token that the draft drew, and a queued answer has there too, is taken without the test."""

    def token(self, p: Floats, draft: LocalDraftDistribution) -> Tokens:
        found = self.sample(draft.q)
        return np.where(draft.siblings[:, 0] == found, found, super().token(p, draft))


class UnlikelySiblingsSkipped(Rejection):
    """Siblings that the draft thinks improbable are not tested, to save room in the tree."""

    def draw(self, q: Floats, width: int) -> LocalDraftDistribution:
        drawn = super().draw(q, width).siblings
        probable = np.take_along_axis(q, np.maximum(drawn, 0), axis=1) >= 0.15
        return LocalDraftDistribution(q, np.where(probable, drawn, NONE))


class WorkerQTrusted(Rejection):
    """A worker sends its favourite token, states a tiny probability for it, and that is used."""

    def draw(self, q: Floats, width: int) -> LocalDraftDistribution:
        favourite = shared_noise.FAVOURITE
        claimed = np.ones_like(q)
        claimed[:, favourite] = 1e-6
        siblings = np.full((len(q), width), NONE, np.int64)
        siblings[:, 0] = favourite
        return LocalDraftDistribution(claimed, siblings)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault and the case in which it is looked for."""

    fault: type[Chooser] | type[Rejection]
    siblings: int
    rule: str
    drafter: str = "honest"

    @property
    def name(self) -> str:
        """Words with hyphens, from the class."""
        return "".join("-" + c.lower() if c.isupper() else c for c in self.fault.__name__).lstrip("-")


MUTANTS = (
    Mutant(SharedNoiseUnderTest, 1, "plain", "random"),
    Mutant(ResidualNotNormalised, 3, "plain"),
    Mutant(SiblingsWithReplacement, 3, "plain"),
    Mutant(PenaltyIgnoresPath, 3, "bias"),
    Mutant(PositionOffByOne, 3, "plain"),
    Mutant(WorkerQTrusted, 1, "plain"),
    Mutant(NoiseOfTheRound, 3, "nucleus"),
    Mutant(ResidualIsTarget, 1, "plain"),
    Mutant(QNotRenormalised, 3, "plain"),
    Mutant(BestInsteadOfDrawn, 2, "plain"),
    Mutant(SuggestionTestedAsDrawn, 1, "plain"),
    Mutant(AgreementAccepted, 1, "plain"),
    Mutant(UnlikelySiblingsSkipped, 2, "plain"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`changed`: share of answers that change with what was drafted; None where fresh randomness hides that."""

    mutant: Mutant
    trials: int
    fit: Fit
    changed: float | None

    @property
    def caught(self) -> bool:
        """Whether the distribution of the answers gives the fault away."""
        return self.fit.p < CAUGHT_BELOW


def run(mutant: Mutant, scene: Scene, trials: int, seed: int) -> Verdict:
    """Runs the fault through the trials of the honest cases."""
    rng, rule = np.random.default_rng(seed), RULES[mutant.rule]
    parts: list[Tokens] = []
    changed = 0
    for size in chunks(trials):
        if issubclass(mutant.fault, Rejection):
            rejection = mutant.fault(rng)
            draft = classic.DRAFTERS[mutant.drafter]
            parts.append(classic.steps(scene, rule, rejection, draft, size, mutant.siblings)[0])
            continue
        seeds = rng.integers(0, 2**63, size, dtype=np.uint64)
        drafted, other = (
            shared_noise.steps(
                scene, rule, seeds, shared_noise.DRAFTERS[name], mutant.siblings, rng, mutant.fault
            ).tokens
            for name in (mutant.drafter, "adversarial")
        )
        parts.append(drafted)
        changed += int((drafted != other).any(axis=1).sum())
    share = None if issubclass(mutant.fault, Rejection) else changed / trials
    return Verdict(mutant, trials, fit(scene, rule, np.concatenate(parts)), share)


def _log(p: Floats) -> Floats:
    return np.log(p, out=np.full_like(p, -np.inf), where=p > 0)
