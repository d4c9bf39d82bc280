"""What the entropy says about the worker: the cases of a recorded completion, and both estimates of them."""

from __future__ import annotations

from pathlib import Path

from cloud_gateway.core.trace import format as trace
from tools.entropy import Case, area, cases, study

TRACES = Path(__file__).parents[1] / "traces"


def test_frames_under_way_answer_an_open_leaf() -> None:
    found = [*cases(trace.unseal((TRACES / "wanspec-dropped-40ms.trace").read_bytes())[0])]
    assert (len(found), sum(case.on_path for case in found)) == (17, 12)
    assert not [*cases(trace.unseal((TRACES / "colocated-k4.trace").read_bytes())[0])], "without a worker"


def test_an_entropy_that_separates_loses_less_than_a_constant() -> None:
    reported = study([Case(0.2, True), Case(3.0, False)] * 50)
    assert reported["loss"]["entropy"] < 0.3 < 0.6 < reported["loss"]["constant"]
    assert reported["ranges"]["to 0.5"] == "50 of 50" and reported["area"] == 1.0
    blind = study([Case(0.2, True), Case(0.2, False), Case(3.0, False), Case(3.0, True)] * 25)
    assert blind["loss"]["entropy"] >= blind["loss"]["constant"] - 0.01 and blind["area"] == 0.5


def test_the_area_needs_cases_of_both_kinds() -> None:
    assert area([Case(1.0, True)]) is None and area([Case(2.0, False), Case(1.0, True)]) == 1.0
