"""`edgespec compare`: policies side by side on one trace, in the simulator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloud_gateway.core.policies.registry import POLICIES
from cloud_gateway.parts.request_traces.look import Looked
from cloud_gateway.parts.request_traces.play import Check
from edgespec.__main__ import main
from edgespec_lab.comparison import compare
from tests.parts.request_traces.test_from_trace import answer, frame, made

SHIPPED = Path(__file__).parent / "traces"
ONE = SHIPPED / "wanspec-20ms.trace"


def tried(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    status = main(["compare", *map(str, arguments)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_three_policies_stand_in_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    policies = [word for name in ("wanspec", "adaptive", "plain") for word in ("--policy", name)]
    status, out, _ = tried(capsys, ONE, *policies, "--json")
    (table,) = json.loads(out)["compared"]
    rows = {row["policy"]: row for row in table["rows"][1:]}
    assert status == 0 and set(rows) == {"wanspec", "adaptive", "plain"}
    assert rows["plain"]["passes"] == table["tokens"] and rows["plain"]["local_passes"] == 0
    assert rows["wanspec"]["kind"] == "simulated" and rows["wanspec"]["ratio"] == 1
    assert rows["plain"]["ratio"] > 1 and 0.9 < table["known"] <= 1
    _, human, _ = tried(capsys, ONE, *policies)
    assert all(name in human for name in rows) and "estimate" in human


def test_parameters_and_round_trips_make_rows_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = tried(capsys, ONE, "--k", "1", "--k", "4", "--rtt-ms", "5", "--rtt-ms", "150", "--json")
    rows = json.loads(out)["compared"][0]["rows"][2:]
    assert [(row["k"], row["rtt_ms"]) for row in rows] == [(1, 5), (4, 5), (1, 150), (4, 150)]
    assert rows[0]["ms_per_token"] < rows[2]["ms_per_token"]


def test_the_same_seed_prints_the_same_table(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (SHIPPED / "worker-lost.trace", "--policy", "wanspec", "--rtt-ms", "30", "--json")
    assert tried(capsys, *arguments) == tried(capsys, *arguments)


def test_phi_changes_what_adaptive_does(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--policy", "adaptive", "--phi", "0", "--phi", "100", "--phi", "learnt", "--json"]
    _, out, _ = tried(capsys, SHIPPED / "adaptive-20ms.trace", *asked)
    (table,) = json.loads(out)["compared"]
    rows = {row["phi"]: row["ms_per_token"] for row in table["rows"] if row["kind"] != "recorded"}
    assert set(rows) == {0.0, 100.0, "learnt"}
    assert rows[0.0] != rows[100.0], "every entropy is above 0 nats and none above 100"
    assert rows["learnt"] != rows[0.0]


def test_policies_are_tried_with_the_head_start_that_the_worker_had() -> None:
    rounds = answer([11], [12], [13], [14], start=0.1)
    ahead, cold = (made(*rounds, early=[frame(3, True, [0], [11], at=at)]) for at in (0.05, 0.11))
    found = [
        compare(Looked(ONE, one, b"", None, False, Check(0, []), POLICIES), [], 1).rows[0] for one in (ahead, cold)
    ]
    assert found[0].passes < found[1].passes and found[0].ms_per_token < found[1].ms_per_token


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere.trace"], 65, "cannot be read"),
        ([ONE, "--policy", "magic"], 78, 'This gateway has no policy "magic"'),
        ([ONE, "--k", "0"], 78, "--k"),
        ([ONE, "--k", "17"], 78, "`--k` takes whole numbers from 1 to 16."),
        ([ONE, "--phi", "nan"], 78, "`--phi` takes nats from 0 to 100, or learnt."),
        ([ONE, "--rtt-ms", "-1"], 78, "--rtt-ms"),
    ],
)
def test_a_mistake_is_one_sentence_and_an_exit_code(
    capsys: pytest.CaptureFixture[str], arguments: list[str | Path], code: int, said: str
) -> None:
    status, _, err = tried(capsys, *arguments)
    assert status == code and said in err and len(err.splitlines()) == 1
