"""The shared noise as a method under test: its cases, and faults planted in `Chooser`.

Such a fault also shows in answers that change with what was drafted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cloud_gateway.core.verify.shared_noise import Chooser, Rows
from edgespec.core.protocol.messages import Sampling
from edgespec.core.sampling.logits import Candidates
from tools.lossless import shared_noise
from tools.lossless.cases import WIDTHS, Answers, Case, Method, Mutant, Result, chunks, fit
from tools.lossless.scene import SYNTHETIC_RULES, Scene
from tools.lossless.shared_noise import DRAFTERS

NAME = "shared-noise"


def cases() -> list[Case]:
    """Three drafters with 1 to 8 siblings; the sampling parameters take turns."""
    rules = SYNTHETIC_RULES
    return [
        Case(NAME, drafter, width, rules[(width + turn) % len(rules)])
        for width in WIDTHS
        for turn, drafter in enumerate(DRAFTERS)
    ]


def at_real_target(width: int, rule: str) -> Case:
    """The drafters take turns."""
    return Case(NAME, list(DRAFTERS)[width % len(DRAFTERS)], width, rule)


def run(case: Case, scene: Scene, rule: Sampling, trials: int, rng: np.random.Generator) -> Result:
    """One case. Some of its answers are also made by the gateway's own loop, with the same candidates and with none."""
    drafter = DRAFTERS[case.drafter]
    parts: list[Answers] = []
    hits = 0
    mismatches = 0
    for size in chunks(trials):
        seeds = rng.integers(0, 2**63, size, dtype=np.uint64)
        outcome = shared_noise.steps(scene, rule, seeds, drafter, case.siblings, rng)
        if not parts:
            replayed = seeds[: max(min(scene.replayed, trials // 8), 1)].tolist()
            for seed, siblings, tokens in zip(replayed, outcome.siblings, outcome.tokens):
                nothing = np.empty((scene.length, 0), np.int64)
                mismatches += shared_noise.replay(scene, rule, seed, siblings) != tokens.tolist()
                mismatches += shared_noise.replay(scene, rule, seed, nothing) != tokens.tolist()
        parts.append(outcome.tokens)
        hits += outcome.hits

    share = hits / trials / scene.length
    return Result(case, trials, fit(scene, rule, np.concatenate(parts)), share, mismatches)


# --- planted faults ---------------------------------------------------------------------------------------------------


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


MUTANTS = (
    Mutant(PenaltyIgnoresPath, 3, "bias"),
    Mutant(PositionOffByOne, 3, "plain"),
    Mutant(NoiseOfTheRound, 3, "nucleus"),
)


def run_mutant(
    mutant: Mutant, scene: Scene, rule: Sampling, trials: int, rng: np.random.Generator
) -> tuple[Answers, float]:
    """The answers under one drafter, and the share of them that another drafter changes."""
    parts: list[Answers] = []
    changed = 0
    for size in chunks(trials):
        seeds = rng.integers(0, 2**63, size, dtype=np.uint64)
        drafted, other = (
            shared_noise.steps(scene, rule, seeds, DRAFTERS[name], mutant.siblings, rng, mutant.fault).tokens
            for name in (mutant.drafter, "adversarial")
        )
        parts.append(drafted)
        changed += int((drafted != other).any(axis=1).sum())

    return np.concatenate(parts), changed / trials


METHOD = Method(NAME, cases(), run, at_real_target, MUTANTS, run_mutant)
