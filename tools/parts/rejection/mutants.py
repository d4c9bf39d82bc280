"""Faults planted in classic rejection sampling: each replaces one or two methods of the real code."""

from __future__ import annotations

import numpy as np

from cloud_gateway.parts.rejection.sampling import NONE, LocalDraftDistribution, Rejection
from tests.support.noise import gumbel_all
from tools.lossless.cases import Mutant
from tools.lossless.shared_noise import FAVOURITE, Tokens
from tools.parts.rejection.trials import Floats


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
        left = q.copy()
        trials = np.flatnonzero(tokens != NONE)
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
        found = np.where((drawn == FAVOURITE).any(axis=1), drawn[:, 0], FAVOURITE)
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
        favourite = FAVOURITE
        claimed = np.ones_like(q)
        claimed[:, favourite] = 1e-6
        siblings = np.full((len(q), width), NONE, np.int64)
        siblings[:, 0] = favourite
        return LocalDraftDistribution(claimed, siblings)


MUTANTS = (
    Mutant(SharedNoiseUnderTest, 1, "plain", "random"),
    Mutant(ResidualNotNormalised, 3, "plain"),
    Mutant(SiblingsWithReplacement, 3, "plain"),
    Mutant(WorkerQTrusted, 1, "plain"),
    Mutant(ResidualIsTarget, 1, "plain"),
    Mutant(QNotRenormalised, 3, "plain"),
    Mutant(BestInsteadOfDrawn, 2, "plain"),
    Mutant(SuggestionTestedAsDrawn, 1, "plain"),
    Mutant(AgreementAccepted, 1, "plain"),
    Mutant(UnlikelySiblingsSkipped, 2, "plain"),
)


def _log(p: Floats) -> Floats:
    return np.log(p, out=np.full_like(p, -np.inf), where=p > 0)
