"""All methods of verification under test: the core's, and those of parts. Runs their cases and their planted faults."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgespec.core.protocol.messages import Sampling
from tools import parts
from tools.lossless import noise_cases
from tools.lossless.cases import Case, Method, Mutant, Result, fit
from tools.lossless.scene import RULES, Scene
from tools.lossless.statistics import Fit

METHODS: tuple[Method, ...] = (noise_cases.METHOD, *parts.METHODS)
CAUGHT_BELOW = 1e-6
"""A mutant's p-value below this counts as caught; honest cases may not come near it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a planted fault was caught."""

    method: str
    mutant: Mutant
    trials: int
    fit: Fit
    changed: float | None
    """Share of answers that change with what was drafted; None if fresh randomness hides that."""

    @property
    def caught(self) -> bool:
        """Whether the distribution of the answers gives the fault away."""
        return self.fit.p < CAUGHT_BELOW


def all_cases() -> list[Case]:
    """The honest cases of every method."""
    return [case for method in METHODS for case in method.cases]


def all_mutants() -> list[Mutant]:
    """The planted faults of every method."""
    return [mutant for method in METHODS for mutant in method.mutants]


def run(case: Case, scene: Scene, rule: Sampling, trials: int, seed: int) -> Result:
    """Runs one case; the same seed gives the same result."""
    (method,) = (method for method in METHODS if case.method.startswith(method.name))
    return method.run(case, scene, rule, trials, np.random.default_rng(seed))


def run_mutant(mutant: Mutant, scene: Scene, trials: int, seed: int) -> Verdict:
    """Runs a fault through the trials of the honest cases."""
    (method,) = (method for method in METHODS if mutant in method.mutants)
    rule = RULES[mutant.rule]
    answers, changed = method.run_mutant(mutant, scene, rule, trials, np.random.default_rng(seed))
    return Verdict(method.name, mutant, trials, fit(scene, rule, answers), changed)
