"""The statistical tool: its tests are right, honest methods pass, each planted fault is caught."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.errors import ModelError
from edgespec.core.protocol.messages import Sampling
from edgespec.core.sampling.logits import History
from tests.support.lossless import assert_caught, assert_fits
from tests.support.processed import process
from tools.lossless import distribution, exact, methods, noise_cases, shared_noise
from tools.lossless.cases import Case, Mutant, Result
from tools.lossless.noise_cases import MUTANTS
from tools.lossless.scene import RULES, SYNTHETIC_RULES, synthetic
from tools.lossless.statistics import chi_square, chi_square_tail, holm

# --- statistics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statistic", "freedom", "p"),
    [  # the usual tables' critical values
        (3.841459, 1, 0.05),
        (6.634897, 1, 0.01),
        (18.307038, 10, 0.05),
        (2.155856, 10, 0.995),
        (124.342113, 100, 0.05),
        (149.449253, 100, 0.001),
    ],
)
def test_tail_probabilities_are_those_of_the_tables(statistic: float, freedom: int, p: float) -> None:
    assert chi_square_tail(statistic, freedom) == pytest.approx(p, rel=1e-5)


def test_p_values_of_true_distributions_are_uniform() -> None:
    rng = np.random.default_rng(1)
    probabilities = rng.dirichlet(np.ones(200) * 0.3)
    ps = np.array([chi_square(rng.multinomial(20_000, probabilities), probabilities).p for _ in range(400)])
    distance = np.abs(np.sort(ps) - (np.arange(400) + 0.5) / 400).max()
    assert distance < 1.95 / math.sqrt(400)  # Kolmogorov-Smirnov at 0.001


def test_small_cells_are_pooled_and_none_is_lost() -> None:
    fit = chi_square(np.array([500, 480, 3, 2, 4, 1, 2]), np.array([0.49, 0.49, 0.004, 0.004, 0.004, 0.004, 0.004]))
    assert fit.cells == 3 and fit.p > 0.01


def test_holm_multiplies_the_smallest_by_the_number_of_tests() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


# --- the exact distribution ------------------------------------------------------------------------------------------


@given(st.sampled_from(list(RULES)), st.integers(0, 2**32), st.lists(st.integers(0, 9), max_size=4))
def test_exact_and_core_agree(name: str, seed: int, answer: list[int]) -> None:
    logits = (np.random.default_rng(seed).normal(size=10) * 2).astype(np.float32)
    mine = exact.next_token(logits.tolist(), RULES[name], [3, 1], answer)
    core = np.exp(process(logits, RULES[name], History([3, 1], answer)))
    np.testing.assert_allclose([mine.get(v, 0.0) for v in range(10)], core / core.sum(), rtol=1e-9)


def test_probabilities_of_all_answers_add_up() -> None:
    for name in SYNTHETIC_RULES:
        assert math.fsum(exact.sequences(synthetic(), RULES[name]).values()) == pytest.approx(1)


# --- honest methods and planted faults -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        Case("shared-noise", "honest", 4, "penalties"),
        Case("shared-noise", "adversarial", 8, "bias"),
    ],
    ids=lambda case: f"{case.method}-{case.drafter}-{case.siblings}",
)
def test_an_honest_method_fits(case: Case) -> None:
    assert_fits(case)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_caught(mutant: Mutant) -> None:
    assert_caught(mutant)


def test_a_fault_of_the_noise_also_lets_drafts_change_answers() -> None:
    for mutant in MUTANTS:
        changed = methods.run_mutant(mutant, synthetic(), 512, seed=5).changed
        assert changed is not None and changed > 0.05


def test_a_fault_only_in_the_vectorised_trials_is_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_noise, "Chooser", noise_cases.PositionOffByOne)  # the replay; steps keeps its default
    result = methods.run(Case("shared-noise", "honest", 3, "plain"), synthetic(), RULES["plain"], 1024, seed=5)
    assert result.mismatches > 50


def test_every_width_and_drafter_is_covered() -> None:
    covered = {(case.method, case.siblings, case.drafter) for case in methods.all_cases()}
    for drafter in ("honest", "random", "adversarial"):
        assert all(("shared-noise", width, drafter) in covered for width in range(1, 9))


def test_a_surviving_fault_or_a_failing_method_fails_the_command() -> None:
    scene = synthetic()
    few = methods.run_mutant(MUTANTS[0], scene, 64, seed=1)
    honest = methods.run(Case("shared-noise", "honest", 1, "plain"), scene, RULES["plain"], 1024, seed=1)
    assert distribution.build_report([honest], [], 1, 0.0)["ok"]
    assert not distribution.build_report([honest], [few], 1, 0.0)["ok"]
    wrong = methods.run(Case("shared-noise", "honest", 1, "plain"), scene, Sampling(temperature=1.0), 20_000, seed=1)
    biased = Result(wrong.case, wrong.trials, chi_square(np.array([900, 100]), np.array([0.5, 0.5])), 0.0)
    assert not distribution.build_report([biased], [], 1, 0.0)["ok"]


@pytest.mark.live
def test_the_first_tokens_of_the_real_target_fit() -> None:
    pytest.importorskip("torch")
    real = pytest.importorskip("tools.lossless.real")
    try:
        jobs = real.jobs(None)
    except ModelError as error:
        pytest.skip(str(error))
    for case, scene in jobs[2:6]:
        result = methods.run(case, scene, RULES[case.rule], 4096, seed=3)
        assert result.fit.p > 1e-5 and result.mismatches == 0


def test_what_cannot_happen_gives_p_zero() -> None:
    assert chi_square(np.array([1000, 1]), np.array([1.0, 0.0])).p == 0
    assert chi_square(np.array([1000, 0]), np.array([1.0, 0.0])).p == 1
