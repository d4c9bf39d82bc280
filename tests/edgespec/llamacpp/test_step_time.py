"""The number of leaves in a step follows from measured step times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgespec.core.drafting.algorithm2 import DraftRule
from edgespec.core.drafting.best_first import BestFirstRule
from edgespec.llamacpp.drafter import Drafter
from edgespec.llamacpp.step_time import affordable_leaves, measured_curve
from edgespec.worker.config import DraftSection
from edgespec.worker.service import draft_rule
from tests.support.tiny_gguf import make_tiny_gguf


@pytest.fixture
def drafter(tmp_path: Path) -> Iterator[Drafter]:
    drafter = Drafter(make_tiny_gguf(tmp_path / "tiny.gguf"), context=1024, sequences=16)
    yield drafter
    drafter.shutdown()


def clock_of(drafter: Drafter, cost: Callable[[int], float]) -> Callable[[], float]:
    """A clock that advances by `cost` of the rows evaluated since it was last read."""
    state = {"rows": drafter.rows, "now": 0.0}

    def read() -> float:
        rows = drafter.rows - state["rows"]
        state["rows"] = drafter.rows
        state["now"] += cost(int(rows)) if rows else 0.0
        return state["now"]

    return read


@pytest.mark.parametrize(
    ("cost", "leaves"),
    [
        (lambda rows: 1.0 * rows, 1),
        (lambda rows: 1.0, 16),
        (lambda rows: 1.0 if rows <= 4 else 2.0, 4),
        (lambda rows: 1.0 + 0.09 * (rows - 1), 4),
    ],
    ids=["every leaf costs a step", "a batch is free", "free up to four", "a little each"],
)
def test_it_takes_as_many_leaves_as_cost_hardly_more_than_one(
    drafter: Drafter, cost: Callable[[int], float], leaves: int
) -> None:
    curve = measured_curve(drafter, clock_of(drafter, cost))
    assert curve == {rows: pytest.approx(cost(rows)) for rows in (1, 2, 4, 8, 16, drafter.together)}
    assert affordable_leaves(curve) == leaves


def test_it_leaves_no_request_behind(drafter: Drafter) -> None:
    ids = len(drafter._free)
    measured_curve(drafter)
    assert drafter.open("another", [1, 2, 3, 4], b"calibration") == 0, "no cached prefix of the measurement"
    assert len(drafter._free) == ids - 1


def test_the_smallest_context_has_room_for_steps_of_all_requests(tmp_path: Path) -> None:
    drafter = Drafter(make_tiny_gguf(tmp_path / "tiny.gguf"), context=256, sequences=16, requests=64)
    assert max(measured_curve(drafter)) == drafter.together == 96
    drafter.shutdown()


def test_what_the_configuration_leaves_open_follows_from_the_curve() -> None:
    curve = {1: 1.0, 2: 1.1, 4: 1.2, 8: 2.0, 16: 4.0}
    algorithm2 = draft_rule(DraftSection(order="algorithm2"), curve)
    best_first = draft_rule(DraftSection(), curve)
    given = draft_rule(DraftSection(branching=3, sequences=5), curve)
    assert (algorithm2.branching, algorithm2.sequences, type(algorithm2)) == (2, 4, DraftRule)
    assert (best_first.branching, best_first.sequences, type(best_first)) == (4, 16, BestFirstRule)
    assert (given.branching, given.sequences) == (3, 5)
