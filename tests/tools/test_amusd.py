"""`tools.bench amusd`: its arms, its figures from batches, and its dialogues."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bench.amusd import arms, plot, summary
from tools.bench.live.answers import Answer, Batch
from tools.bench.source_prompts import DIALOGUES

MS = {
    "plain": 40, "k = 2": 30, "k = 4": 25, "plain, 2 cores": 24, "k = 2, 2 cores": 20, "k = 4, 2 cores": 28,
    "amusd": 20, "adaptive": 10,
}  # fmt: skip


def batch(arm: str, number: int, ms: float) -> Batch:
    times = [ms / 1000 * place for place in range(1, 11)]
    answer = Answer("a", 10, 7, times, times[-1], 5, 9 * ms, 9, 4, 2)
    return Batch(arm, 1, number, [answer], times[-1], 0.0, 0.5, neighbour=False, target_core_s=0.2, worker_core_s=0.1)


def test_each_method_has_two_cores_in_some_arm() -> None:
    made = {arm.name: arm for arm in arms([2, 4])}
    assert list(made) == [
        "plain", "k = 2", "k = 4", "plain, 2 cores", "k = 2, 2 cores", "k = 4, 2 cores", "amusd", "adaptive"
    ]  # fmt: skip
    assert {name for name, arm in made.items() if arm.cores + arm.worker == 2} == {*list(made)[3:]}
    assert made["amusd"].asks == {"policy": "amusd"} and made["k = 4, 2 cores"].asks == {"policy": "colocated", "k": 4}


def test_speculation_counts_with_its_best_k_on_each_number_of_cores(tmp_path: Path) -> None:
    slower = {"chat": 1.0, "code": 2.0}
    batches = [batch(arm, number, ms * slower[kind]) for number, kind in enumerate(slower) for arm, ms in MS.items()]
    found = summary(arms([2, 4]), batches, list(slower))
    rows = {(row["text"], row["method"]): row for row in found["rows"]}
    assert rows["chat", "speculative"]["arm"] == "k = 4" and rows["chat", "speculative"]["speed-up"] == 1.6
    assert rows["code", "speculative, 2 cores"]["arm"] == "k = 2, 2 cores"
    assert rows["code", "amusd"]["ms / token"] == 40 and rows["code", "amusd"]["speed-up"] == 2
    assert rows["code", "amusd"]["printed"] == 1.57 and rows["code", "adaptive"]["printed"] is None
    assert rows["chat", "plain"]["CPU ms / token"] == 30 and rows["chat", "plain"]["tokens / pass"] == 2
    gains = {(gain["text"], gain["method"]): gain for gain in found["gains"]}
    assert gains["chat", "amusd"]["/ speculative"] == 1.25 and gains["chat", "amusd"]["/ best on 2 cores"] == 1
    assert gains["chat", "amusd"]["printed"] == 1.24
    assert gains["geometric mean", "adaptive"]["/ speculative"] == pytest.approx(2.5)
    assert gains["geometric mean", "amusd"]["printed"] == 1.29
    plot(found["rows"], tmp_path / "out.json")
    assert (tmp_path / "out.png").stat().st_size > 1000


def test_dialogues_end_with_a_request_after_the_code_as_it_is_then() -> None:
    for messages in DIALOGUES:
        assert [one["role"] for one in messages] == ["user", "assistant"] * 3 + ["user"]
        assert len({one["content"] for one in messages}) == len(messages), "each change changed something"
