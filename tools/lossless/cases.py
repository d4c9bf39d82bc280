"""The honest cases: each method, width and drafter, tested against the exact distribution of whole answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.parts.rejection.sampling import Rejection
from edgespec.core.protocol.messages import Sampling
from tools.lossless import classic, exact, shared_noise
from tools.lossless.scene import SYNTHETIC_RULES, Scene
from tools.lossless.statistics import Fit, chi_square

Method = Literal["shared-noise", "rejection-chain", "rejection-tree", "rejection-loop"]
WIDTHS = range(1, 9)
CHUNK = 16384
"""Trials that go through the arrays at once: they stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Case:
    """One method under one drafter. `siblings`: candidates under each node; `rule`: name of the sampling parameters."""

    method: Method
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


def all_cases() -> list[Case]:
    """Every method with 1 to 8 siblings, three drafters each; the sampling parameters take turns."""
    rules = SYNTHETIC_RULES
    cases: list[Case] = []
    for width in WIDTHS:
        for turn, drafter in enumerate(shared_noise.DRAFTERS):
            rule = rules[(width + turn) % len(rules)]
            cases.append(Case("shared-noise", drafter, width, rule))
            if width > 1:
                cases.append(Case("rejection-tree", drafter, width, rule))
    cases += [Case("rejection-chain", drafter, 1, rule) for rule in rules for drafter in classic.DRAFTERS]
    cases += [Case("rejection-loop", "honest", 3, rule) for rule in ("nucleus", "penalties")]
    cases += [Case("rejection-loop", source, 3, rule) for source in classic.SOURCES for rule in ("plain", "bias")]
    return cases


def run(case: Case, scene: Scene, rule: Sampling, trials: int, seed: int) -> Result:
    """Runs one case; the same seed gives the same result."""
    rng = np.random.default_rng(seed)
    if case.method == "shared-noise":
        return _run_shared_noise(case, scene, rule, trials, rng)
    if case.method == "rejection-loop":
        trials = max(trials // 32, 1)
        more = (classic.SOURCES[case.drafter],) if case.drafter in classic.SOURCES else ()
        answers = np.array([classic.replay(scene, rule, case.siblings, rng, *more) for _ in range(trials)])
        return Result(case, trials, fit(scene, rule, answers), 0.0)
    rejection, hits = Rejection(rng), 0
    parts: list[NDArray[np.int64]] = []
    for size in chunks(trials):
        tokens, hit = classic.steps(scene, rule, rejection, classic.DRAFTERS[case.drafter], size, case.siblings)
        parts.append(tokens)
        hits += hit
    return Result(case, trials, fit(scene, rule, np.concatenate(parts)), hits / trials / scene.length)


def _run_shared_noise(case: Case, scene: Scene, rule: Sampling, trials: int, rng: np.random.Generator) -> Result:
    drafter = shared_noise.DRAFTERS[case.drafter]
    parts: list[NDArray[np.int64]] = []
    hits, mismatches = 0, 0
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
    return Result(case, trials, fit(scene, rule, np.concatenate(parts)), hits / trials / scene.length, mismatches)


def chunks(trials: int) -> Iterator[int]:
    """Sizes that add up to `trials`."""
    for start in range(0, trials, CHUNK):
        yield min(CHUNK, trials - start)


def fit(scene: Scene, rule: Sampling, answers: NDArray[np.int64]) -> Fit:
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
