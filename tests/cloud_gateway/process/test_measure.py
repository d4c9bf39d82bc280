"""The target's cost curve is measured before the first request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.models.target_model import Work
from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget
from cloud_gateway.process.loading import LIMIT_S, measure
from tests.support.tiny_gguf import make_tiny_gguf
from tools.doubles.engines import TableTarget


class Timed(TableTarget):
    """A pass takes `step_s`, and `row_s` for each row; the first over so many rows ten times that."""

    def __init__(self, step_s: float, row_s: float) -> None:
        super().__init__()
        self.now, self.step_s, self.row_s = 0.0, step_s, row_s
        self.seen: set[int] = set()

    def verify(self, batch: Sequence[Work]) -> list:  # type: ignore[type-arg,override]
        rows = sum(len(work.tree) for work in batch)
        self.now += (self.step_s + self.row_s * rows) * (1 if rows in self.seen else 10)
        self.seen.add(rows)
        return super().verify(batch)


def test_the_curve_holds_what_a_second_pass_takes() -> None:
    target = Timed(0.002, 0.0001)
    curve = measure(target, lambda: target.now)
    assert sorted(curve) == [1, 2, 4, 8, 16, 32]
    assert all(abs(seconds - (0.002 + 0.0001 * rows)) < 1e-9 for rows, seconds in curve.items())


def test_a_slow_target_is_measured_for_about_a_second_and_no_longer() -> None:
    target = Timed(0.2, 0.0)
    assert list(measure(target, lambda: target.now)) == [1]
    assert target.now < LIMIT_S + 22 * 0.2


def test_every_slot_is_free_again() -> None:
    target = Timed(0.001, 0.0)
    for _ in range(3 * target.slots):
        measure(target, lambda: target.now)


def test_a_provisional_step_is_forgotten_with_the_first_pass() -> None:
    provisional, measured = StepCurve({1: 0.030}, provisional=True), StepCurve({1: 0.100, 4: 0.110})
    provisional.sample(5, 0.300)
    assert provisional(1) == 0.300
    measured.sample(4, 0.150)
    assert measured(4) == 0.150
    assert abs(measured(1) - 0.100 * 150 / 110) < 1e-9, "what was measured is scaled where nothing newer is known"


def test_one_slot_with_small_trees_is_measured_by_llama_cpp_too(tmp_path: Path) -> None:
    model = make_tiny_gguf(tmp_path / "tiny.gguf")
    target = LlamaCppTarget(model, eos=frozenset(), slots=1, context=256, tree_nodes=4, threads=1)
    assert measure(target, clock=lambda: 0.0).keys() == {1, 2, 4, 8, 16, 32}
    target.shutdown()
