"""The two assertions about every method of verification under `tools.lossless`."""

from __future__ import annotations

from tools.lossless import methods
from tools.lossless.cases import Case, Mutant
from tools.lossless.methods import Verdict
from tools.lossless.scene import RULES, synthetic

TRIALS = 16384
SEED = 5


def assert_fits(case: Case) -> None:
    """The answers of an honest case are a sample of the exact distribution."""
    result = methods.run(case, synthetic(), RULES[case.rule], TRIALS, SEED)
    assert result.fit.p > 1e-4 and result.mismatches == 0


def assert_caught(mutant: Mutant) -> Verdict:
    """The distribution of the answers gives a planted fault away."""
    verdict = methods.run_mutant(mutant, synthetic(), TRIALS, SEED)
    assert verdict.caught, f"p = {verdict.fit.p}"
    return verdict
