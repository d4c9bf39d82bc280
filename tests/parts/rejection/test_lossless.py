"""Classic rejection sampling under the statistical tool: honest cases fit, each planted fault is caught."""

from __future__ import annotations

import pytest

from tools.lossless import methods
from tools.lossless.cases import Case, Mutant
from tools.lossless.scene import RULES, synthetic
from tools.parts.rejection import METHOD
from tools.parts.rejection.mutants import MUTANTS


@pytest.mark.parametrize(
    "case",
    [
        Case("rejection-chain", "adversarial", 1, "nucleus"),
        Case("rejection-tree", "random", 8, "penalties"),
        Case("rejection-loop", "honest", 3, "bias"),
        Case("rejection-loop", "lookup", 3, "plain"),
        Case("rejection-loop", "answers", 3, "plain"),
    ],
    ids=lambda case: f"{case.method}-{case.drafter}-{case.siblings}",
)
def test_an_honest_case_fits(case: Case) -> None:
    result = methods.run(case, synthetic(), RULES[case.rule], 16384, seed=5)
    assert result.fit.p > 1e-4 and result.mismatches == 0


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_caught(mutant: Mutant) -> None:
    verdict = methods.run_mutant(mutant, synthetic(), 16384, seed=5)
    assert verdict.caught, f"p = {verdict.fit.p}"
    assert verdict.changed is None, "fresh randomness changes answers without any fault"


def test_chains_and_every_width_of_trees_are_covered_with_each_drafter() -> None:
    covered = {(case.method, case.siblings, case.drafter) for case in METHOD.cases}
    for drafter in ("honest", "random", "adversarial"):
        assert ("rejection-chain", 1, drafter) in covered
        assert all(("rejection-tree", width, drafter) in covered for width in range(2, 9))
