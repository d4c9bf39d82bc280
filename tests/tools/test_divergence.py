"""The count of divergences: none where the target is exact, each one once where it is not, at the gap that it has."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cloud_gateway.core.verify.flatten import FlatTree
from cloud_gateway.models.target_model import Work
from edgespec.core.protocol.messages import Sampling
from tests.support.tiny_target import make_tiny_target
from tools.doubles.engines import TableTarget
from tools.doubles.model import next_logits
from tools.lossless.__main__ import main
from tools.lossless.divergence import SHAPES, Answer, Shape, comb, decode, speculate
from tools.lossless.divergence_report import poisson_interval

PROMPT = [3, 1, 4, 1, 5]
GREEDY = Sampling()
SAMPLED = Sampling(temperature=0.7, seed=5)


class Rounding(TableTarget):
    """Adds an error to every row that is verified with others, as another order of summing would."""

    def __init__(self, error: float) -> None:
        super().__init__(slots=1, pass_s=0.0, eos=frozenset())
        self.error = error

    def verify(self, batch: list[Work]) -> list[Rounded]:  # type: ignore[override]
        (rows,) = super().verify(batch)
        tree = batch[0].tree
        return [Rounded([rows.logits(row) for row in range(len(tree))], self.error if len(tree) > 1 else 0.0)]


class Rounded:
    def __init__(self, logits: list[NDArray[np.float32]], error: float) -> None:
        self._logits = [row + error * (np.arange(len(row)) % 2) for row in logits]
        self.argmax = [int(row.argmax()) for row in self._logits]

    def logits(self, row: int) -> NDArray[np.float32]:
        return self._logits[row]


def all_right(answer: Answer) -> NDArray[np.bool_]:
    return np.ones(len(answer.tokens) + 8, bool)


@pytest.mark.parametrize("rule", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("wrong", [0.0, 0.5, 1.0])
def test_an_exact_target_never_diverges_in_any_tree(rule: Sampling, shape: Shape, wrong: float) -> None:
    target = Rounding(0.0)
    answer = decode(target, rule, PROMPT, 60)
    before = target.verified
    right = np.random.default_rng(1).random(len(answer.tokens) + shape.depth) >= wrong
    assert speculate(target, rule, PROMPT, answer, shape, right) == []
    passes, tokens = target.verified - before, len(answer.tokens)
    assert passes == (-(-tokens // (shape.depth + 1)) if wrong == 0 else tokens if wrong == 1 else passes) <= tokens


@pytest.mark.parametrize("rule", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_every_position_counts_once_and_its_gap_explains_it(rule: Sampling) -> None:
    target, error = Rounding(0.3), 0.3 / (rule.temperature or 1)
    answer = decode(target, rule, PROMPT, 300)
    found = speculate(target, rule, PROMPT, answer, Shape(1, 3), all_right(answer), 7)
    assert len(found) > 3 and len({one.position for one in found}) == len(found)
    for one in found:
        assert one.prompt == 7 and one.plain == answer.tokens[one.position] != one.speculative
        assert 0 <= one.plain_gap <= error and one.plain % 2 == 0 and one.speculative % 2 == 1
        assert one.plain_gap == answer.gaps[one.position]
    close = [i for i, gap in enumerate(answer.gaps) if gap < error]
    assert {one.position for one in found} <= set(close) and len(close) < len(answer.gaps) / 2


def test_the_gap_is_that_of_the_best_two_logits() -> None:
    answer = decode(Rounding(0.0), GREEDY, PROMPT, 5)
    for i, gap in enumerate(answer.gaps):
        best = np.sort(next_logits([*PROMPT, *answer.tokens[:i]]))
        assert gap == pytest.approx(float(best[-1] - best[-2]))


def test_a_comb_continues_from_the_right_candidate() -> None:
    answer = Answer(tokens=[5, 6, 7], gaps=[1.0] * 3, best=[[5, 1, 2], [3, 6, 4], [7, 8, 9]])
    right = np.array([True, False, True])
    assert comb(9, answer, 0, Shape(2, 3), right) == FlatTree(
        [9, 1, 5, 3, 4, 8, 7], [-1, 0, 0, 2, 2, 4, 4], [0, 1, 1, 2, 2, 3, 3]
    )
    assert comb(9, answer, 2, Shape(1, 8), right) == FlatTree([9, 7], [-1, 0], [0, 1])


def test_intervals_are_those_of_the_tables() -> None:
    assert poisson_interval(0) == pytest.approx((0.0, 3.689), abs=1e-3)
    assert poisson_interval(10) == pytest.approx((4.795, 18.390), abs=1e-3)


def test_the_command_measures_writes_merges_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = make_tiny_target(tmp_path / "tiny", vocab=300), tmp_path / "out.json"
    options = ["--limit", "2", "--max-tokens", "24", "--model", str(model), "--json", str(out)]
    assert main(["divergence", *options, "--ways", "fp32-transformers", "packed", "transformers"]) == 0
    report = json.loads(out.read_text())
    assert [arm["divergences"] for arm in report["arms"] if arm["way"] != "transformers"] == [0] * 16
    assert {base["way"]: base["exact"] for base in report["baselines"]} == {
        "fp32-transformers": False, "packed": True, "transformers": False,
    }  # fmt: skip
    assert len(report["arms"]) == 3 * 2 * len(SHAPES) and len(report["baselines"]) == 6
    assert main(["divergence", "--merge", str(out), str(out), "--plot", str(tmp_path / "plot")]) == 0
    assert (tmp_path / "plot.png").stat().st_size > 1000 and (tmp_path / "plot.svg").exists()
    for arm in report["arms"]:
        arm["exact"], arm["divergences"] = True, 1
    out.write_text(json.dumps(report))
    assert main(["divergence", "--merge", str(out)]) == 1, "an exact way that diverged"
    out.write_text("{}")
    assert main(["divergence", "--merge", str(out)]) == 78 and "Not figures of this command" in capsys.readouterr().err
