"""Classic rejection sampling as a method under test of `python -m tools.lossless`."""

from __future__ import annotations

import numpy as np

from cloud_gateway.parts.rejection.sampling import Rejection
from edgespec.core.protocol.messages import Sampling
from tools.lossless.cases import WIDTHS, Answers, Case, Method, Mutant, Result, chunks, fit
from tools.lossless.scene import SYNTHETIC_RULES, Scene
from tools.parts.rejection import trials as under_test
from tools.parts.rejection.mutants import MUTANTS
from tools.parts.rejection.trials import DRAFTERS, SOURCES

NAME = "rejection"
CHAIN = "rejection-chain"
TREE = "rejection-tree"
LOOP = "rejection-loop"
LOOP_SHARE = 32
"""A case of the gateway's own loop has so many times fewer trials: it makes one answer at a time."""


def cases() -> list[Case]:
    """Chains, trees of 2 to 8 siblings, and the gateway's loop, alone and beside other sources."""
    rules = SYNTHETIC_RULES
    found = [
        Case(TREE, drafter, width, rules[(width + turn) % len(rules)])
        for width in WIDTHS[1:]
        for turn, drafter in enumerate(DRAFTERS)
    ]
    found += [Case(CHAIN, drafter, 1, rule) for rule in rules for drafter in DRAFTERS]
    found += [Case(LOOP, "honest", 3, rule) for rule in ("nucleus", "penalties")]
    found += [Case(LOOP, source, 3, rule) for source in SOURCES for rule in ("plain", "bias")]
    return found


def at_real_target(width: int, rule: str) -> Case:
    """A tree, or a chain if it is one wide."""
    return Case(TREE if width > 1 else CHAIN, "honest", width, rule)


def run(case: Case, scene: Scene, rule: Sampling, trials: int, rng: np.random.Generator) -> Result:
    """One case."""
    if case.method == LOOP:
        trials = max(trials // LOOP_SHARE, 1)
        more = (SOURCES[case.drafter],) if case.drafter in SOURCES else ()
        answers = np.array([under_test.replay(scene, rule, case.siblings, rng, *more) for _ in range(trials)])
        return Result(case, trials, fit(scene, rule, answers), 0.0)

    rejection = Rejection(rng)
    hits = 0
    parts: list[Answers] = []
    for size in chunks(trials):
        tokens, hit = under_test.steps(scene, rule, rejection, DRAFTERS[case.drafter], size, case.siblings)
        parts.append(tokens)
        hits += hit

    return Result(case, trials, fit(scene, rule, np.concatenate(parts)), hits / trials / scene.length)


def run_mutant(
    mutant: Mutant, scene: Scene, rule: Sampling, trials: int, rng: np.random.Generator
) -> tuple[Answers, None]:
    """The answers with the fault; fresh randomness changes them in any case."""
    draft = DRAFTERS[mutant.drafter]
    parts = [
        under_test.steps(scene, rule, mutant.fault(rng), draft, size, mutant.siblings)[0] for size in chunks(trials)
    ]
    return np.concatenate(parts), None


METHOD = Method(NAME, cases(), run, at_real_target, MUTANTS, run_mutant)
