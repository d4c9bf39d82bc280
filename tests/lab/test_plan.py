"""`edgespec plan`: what it says at places whose answer is known, its output, and its mistakes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.__main__ import main
from edgespec_lab.plan import PAYS, Outcome, Place, bars, farthest, least_right, linear, outcome, verdict

GPU = Place(
    target_ms=35, row_ms=0.0, draft_ms=6, leaf_ms=0.0, rtt_ms=8, right=0.75, clients=1, workers=1,
)  # fmt: skip
ASKED = ["plan", "--target-ms", "35", "--draft-ms", "6", "--rtt-ms", "8", "--right", ".75"]


def simulated(gain: float, clients: int = 1, rtt_ms: float = 8.0) -> Outcome:
    return Outcome(clients, rtt_ms, 0.75, 100.0, 100.0 * gain, 2.0)


# --- the simulation -------------------------------------------------------------------------------------------------


def test_alone_a_gateway_without_a_draft_makes_one_token_a_pass() -> None:
    assert outcome(GPU).alone == pytest.approx(1000 / GPU.target_ms, rel=1e-3)


def test_a_near_worker_that_is_right_pays_and_a_slow_one_does_not() -> None:
    assert outcome(replace(GPU, right=0.95)).gain > 3
    for bad in (replace(GPU, draft_ms=70.0), replace(GPU, right=0.01, row_ms=5.0), replace(GPU, rtt_ms=2000.0)):
        assert 0.97 <= outcome(bad).gain < PAYS


def test_right_drafts_near_workers_and_fast_ones_are_each_worth_more() -> None:
    base = outcome(GPU).gain
    assert outcome(replace(GPU, right=0.9)).gain > base > outcome(replace(GPU, rtt_ms=80.0)).gain
    assert outcome(replace(GPU, draft_ms=2.0)).gain > base > outcome(replace(GPU, draft_ms=20.0)).gain


def test_rows_that_cost_and_a_draft_at_the_gateway_leave_less_to_gain() -> None:
    base = outcome(GPU).gain
    assert outcome(replace(GPU, row_ms=10.0)).gain < base
    assert outcome(replace(GPU, gateway_draft_ms=6.0)).gain < base


def test_one_worker_for_several_clients_brings_each_less() -> None:
    several = replace(GPU, clients=4, leaf_ms=1.0, gateway_draft_ms=6.0)
    shared = outcome(several)
    own = outcome(replace(several, workers=4))
    assert shared.alone == own.alone and shared.gain < own.gain


def test_a_pass_of_several_requests_has_the_rows_of_all() -> None:
    curve = linear(10.0, 2.0, together=3)
    assert curve[1] == 10.0 + 2.0 * 2


# --- what it says ---------------------------------------------------------------------------------------------------


def test_the_reach_ends_at_the_first_round_trip_that_does_not_pay() -> None:
    assert (
        farthest(
            [simulated(2.0, rtt_ms=1), simulated(1.5, rtt_ms=5), simulated(1.0, rtt_ms=10), simulated(1.3, rtt_ms=20)]
        )
        == 5
    )
    assert farthest([simulated(1.0, rtt_ms=1), simulated(2.0, rtt_ms=5)]) is None


def test_the_verdict_says_when_not_to() -> None:
    said = verdict(GPU, [simulated(2.7), simulated(1.02, clients=8)], [simulated(1.01, rtt_ms=1)], None)
    assert said[0] == "A lone client gets 2.70 times as many tokens a second with a worker."
    assert said[1] == "Each of 8 clients gets 1.02 times as many: do not use a worker for this load."
    assert said[2] == "No round trip is short enough for it."
    assert said[3] == "At 8 ms no share of right drafts is enough: the draft has to be faster, or nearer."


def test_the_least_share_of_right_drafts_is_one_that_pays() -> None:
    weak = replace(GPU, row_ms=6.0, draft_ms=12.0, rtt_ms=20.0)
    least = least_right(weak)
    assert least is not None and outcome(replace(weak, right=least)).gain >= PAYS
    assert least_right(replace(GPU, draft_ms=200.0)) is None


def test_a_bar_that_loses_ends_before_the_mark_of_no_gain() -> None:
    loss, none, gain = bars([simulated(0.8), simulated(1.0), simulated(2.0)])
    assert loss.index("█" * 2) < loss.index("│") == none.rindex("█") == loss.index("│")
    assert gain.count("█") == 2 * none.count("█")


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_and_writes_the_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--clients", "1,2", "--svg", str(tmp_path / "plan.svg")]) == 0
    printed = capsys.readouterr().out
    assert "times as fast" in printed and "A lone client gets" in printed and "Each of 2 clients gets" in printed
    assert (tmp_path / "plan.svg").read_text().startswith("<?xml")


def test_as_json_it_has_each_place_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["clients"] for row in found["clients"]] == [1]
    trips = [row["rtt_ms"] for row in found["round_trips"]]
    assert trips == sorted(set(trips)) and 8.0 in trips
    assert found["place"]["row_ms"] == pytest.approx(0.7) and 0 < found["least_right"] < 1


@pytest.mark.parametrize(
    ("option", "value"), [("--right", "1.5"), ("--target-ms", "0"), ("--clients", "0"), ("--svg", "/nowhere/plan.svg")]
)
def test_a_mistake_is_one_sentence(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*ASKED, option, value])
    assert option in capsys.readouterr().err
