"""Classic rejection sampling under the statistical tool: honest cases fit, each planted fault is caught."""

from __future__ import annotations

import pytest

from tests.support.lossless import assert_caught, assert_fits
from tools.lossless.cases import Case, Mutant
from tools.parts.rejection import METHOD
from tools.parts.rejection.mutants import MUTANTS


@pytest.mark.parametrize(
    "case",
    [
        Case("rejection-chain", "adversarial", 1, "nucleus"),
        Case("rejection-tree", "random", 8, "penalties"),
        Case("rejection-loop", "honest", 3, "bias"),
        Case("rejection-loop", "lookup", 3, "plain"),
        Case("rejection-loop", "texts", 3, "plain"),
    ],
    ids=lambda case: f"{case.method}-{case.drafter}-{case.siblings}",
)
def test_an_honest_case_fits(case: Case) -> None:
    assert_fits(case)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_caught(mutant: Mutant) -> None:
    assert assert_caught(mutant).changed is None, "fresh randomness changes answers without any fault"


def test_chains_and_every_width_of_trees_are_covered_with_each_drafter() -> None:
    covered = {(case.method, case.siblings, case.drafter) for case in METHOD.cases}
    for drafter in ("honest", "random", "adversarial"):
        assert ("rejection-chain", 1, drafter) in covered
        assert all(("rejection-tree", width, drafter) in covered for width in range(2, 9))
