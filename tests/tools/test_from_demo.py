"""The simulator beside the demo: traces are joined by prompt, and each arm is simulated at the run's own step times."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgespec.core.drafting.calibration import Calibrator
from edgespec.core.errors import TraceError
from edgespec.lab.replay.look import look
from edgespec.lab.sim.from_trace import Traced
from edgespec.lab.sim.steps import Curve
from tools.sim import from_demo

TRACES = Path(__file__).parents[1] / "traces"
SHIPPED = TRACES / "adaptive-20ms.trace"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of one prompt: shipped traces in place of a demo's own."""
    made = tmp_path / "traces"
    made.mkdir()
    shutil.copy(TRACES / "adaptive-20ms.trace", made / "000-balanced-20.trace")
    shutil.copy(TRACES / "colocated-k4.trace", made / "000-colocated_k2.trace")
    (made / "notes.trace").write_text("not of a prompt")
    return made


def test_each_arm_is_compared_with_the_reference_on_its_prompt(folder: Path) -> None:
    every = from_demo.read(folder)
    times = from_demo.Times.of(every[0].values())
    row = from_demo.row(every, "balanced-20", times)
    arm, base = every[0]["balanced-20"], every[0]["colocated_k2"]
    assert row["live"] == pytest.approx(arm.ms_per_token / base.ms_per_token, abs=1e-3)
    assert row["sim"] == pytest.approx(row["live"], abs=0.15)
    assert row["sim_passes"] == pytest.approx(arm.passes, rel=0.6), (
        "of one completion, whose worker the simulator draws"
    )
    assert row["points"] == pytest.approx((row["live"] - row["sim"]) * 100, abs=0.02)
    assert from_demo.row(every, "colocated_k2", times)["sim"] == 1
    with pytest.raises(TraceError, match="latency-20"):
        from_demo.row(every, "latency-20", times)


def fresh() -> list[Calibrator]:
    return [Calibrator() for _ in range(from_demo.FILLINGS)]


def test_an_arm_whose_own_passes_are_slower_differs_from_the_runs() -> None:
    """`sim` has the run's passes, `own` the arm's: with the arm's twice as long only `own` gets longer."""
    arm = Traced(look(SHIPPED, SHIPPED.read_bytes(), None).trace)
    times = from_demo.Times(Curve({rows: s[0] / 2 for rows, s in arm.measured.timed.items()}), 0.004, 0.0)
    of_the_run, _ = from_demo.simulated(arm, times.steps(arm), 0, fresh())
    own, _ = from_demo.simulated(arm, from_demo.own_steps(arm), 0, fresh())
    assert own > 1.2 * of_the_run
