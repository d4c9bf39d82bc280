"""Cases, planted faults, and the methods of verification that have them.

Each case of a method, a width and a drafter is tested against the exact distribution of whole answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.core.protocol.messages import Sampling
from tools.lossless import exact
from tools.lossless.scene import Scene
from tools.lossless.statistics import Fit, chi_square

Answers = NDArray[np.int64]
"""Tokens of answers, shape [trials, length]."""
WIDTHS = range(1, 9)
CHUNK = 16384
"""Trials that go through the arrays at once: they stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Case:
    """One method under one drafter. `siblings`: candidates under each node; `rule`: name of the sampling parameters."""

    method: str
    drafter: str
    siblings: int
    rule: str


@dataclass(frozen=True, slots=True)
class Result:
    """`hits`: share of the answers' tokens that were among the candidates.

    `mismatches`: answers in which the vectorised trials and the gateway's loop disagree, or that change when nothing is
    drafted; there must be none.
    """

    case: Case
    trials: int
    fit: Fit
    hits: float
    mismatches: int = 0


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted fault and the case in which it is looked for."""

    fault: type[Any]
    """A class of the real code with one or two methods replaced."""
    siblings: int
    rule: str
    drafter: str = "honest"

    @property
    def name(self) -> str:
        """Words with hyphens, from the class."""
        return "".join("-" + c.lower() if c.isupper() else c for c in self.fault.__name__).lstrip("-")


@dataclass(frozen=True, slots=True)
class Method:
    """A method of verification, and what tests it.

    The same generator gives the same results.
    """

    name: str
    cases: Sequence[Case]
    run: Callable[[Case, Scene, Sampling, int, np.random.Generator], Result]
    """(case, scene, rule, trials, rng) -> the result of an honest case."""
    at_real_target: Callable[[int, str], Case]
    """(width, rule) -> the case for the first tokens of a real target."""
    mutants: Sequence[Mutant]
    run_mutant: Callable[[Mutant, Scene, Sampling, int, np.random.Generator], tuple[Answers, float | None]]
    """(mutant, scene, rule, trials, rng) -> its answers, and the share of them that change with what was drafted; None
    if fresh randomness hides that."""


def chunks(trials: int) -> Iterator[int]:
    """Sizes that add up to `trials`."""
    for start in range(0, trials, CHUNK):
        yield min(CHUNK, trials - start)


def fit(scene: Scene, rule: Sampling, answers: Answers) -> Fit:
    """Chi-square of answers, shape [trials, length], against their exact distribution."""
    reference = scene.plain or scene
    if repr(rule) not in (known := reference.answers):
        known[repr(rule)] = exact.sequences(reference, rule)
    probabilities = known[repr(rule)]
    found, counts = np.unique(answers, axis=0, return_counts=True)
    observed = dict(zip(map(tuple, found.tolist()), counts.tolist(), strict=True))
    cells = sorted(probabilities.keys() | observed.keys())
    return chi_square(
        np.array([observed.get(cell, 0) for cell in cells]), np.array([probabilities.get(cell, 0.0) for cell in cells])
    )
