"""Recorded traces hold these policies to what they decided, and others are tried on them.

Another part reads traces: without it these tests are skipped.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloud_gateway.__main__ import main
from cloud_gateway.parts import all_parts
from edgespec.__main__ import main as edgespec

TRACES = sorted(Path(__file__).parent.glob("*.trace"))
pytestmark = pytest.mark.skipif(
    all(part.read_past is None for part in all_parts()), reason="the part that reads traces is removed"
)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_the_policies_decide_as_when_the_traces_were_recorded(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a deliberate change: `make traces`."""
    assert main(["replay", str(path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["traces"]
    assert row["same"] == row["decisions"] >= 20 and row["salted"]


def test_the_traces_are_of_two_policies() -> None:
    assert [path.stem for path in TRACES] == ["colocated-k4", "rolling-k-20ms"]


@pytest.mark.parametrize(("name", "rtt"), [("colocated-k4", ["--rtt-ms", "20"]), ("rolling-k-20ms", [])])
def test_the_simulated_completion_takes_about_as_long(
    name: str, rtt: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(__file__).parent / f"{name}.trace"
    assert edgespec(["compare", str(path), "--policy", "plain", *rtt, "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["compared"]
    ran = table["rows"][0]
    assert ran["kind"] == "recorded" and ran["ratio"] == pytest.approx(1, rel=0.35), "load on the machine explains it"


def test_a_worker_for_a_trace_without_one_needs_a_round_trip(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parent / "colocated-k4.trace"
    assert edgespec(["compare", str(path), "--policy", "wanspec"]) == 65
    assert "--rtt-ms" in capsys.readouterr().err
