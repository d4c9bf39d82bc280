"""`tools.bench`: what each benchmark of the host side measures, on tiny models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cloud_gateway.models.target_model.forward import SlotKv
from cloud_gateway.process.config import GatewaySettings
from tools.bench import target
from tools.bench.__main__ import main
from tools.bench.rounds import Setup


def test_the_bench_of_rounds_measures_the_shipped_defaults_by_parts(tmp_path: Path) -> None:
    out = tmp_path / "rounds.json"
    assert main(["rounds", "--rounds", "30", "--json", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert figures["frames_per_round"] == 4 and figures["tokens_per_round"] > 1
    for part in ("receive", "engine", "send", "engine_and_send", "round", "decision"):
        assert 0 < figures[f"{part}_us"] <= figures[f"{part}_p99_us"]
    assert figures["decision_us"] < figures["engine_us"] and figures["decisions_per_round"] >= 1
    assert Setup().policy == GatewaySettings().policy.name and GatewaySettings().policy.verify_nodes == 16


def test_the_bench_of_the_target_finds_trees_and_plain_decoding_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(target.SHAPES, "135m", (2, 32, 64, 4, 2, 97))
    out = tmp_path / "target.json"
    options = ["--dtype", "float32", "--rows", "1", "3", "--context", "16", "--identity", "24", "--repeats", "2"]
    assert main(["target", *options, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["same"] == found["of"] == 24 and 5 < found["passes"] < 24
    assert [cell["rows"] for cell in found["cells"]] == [1, 3] and all(cell["pass_ms"] > 0 for cell in found["cells"])


def keep_the_first_rows(kv: SlotKv, rows: Sequence[int]) -> None:
    """Planted fault: the KV entries of rejected siblings stay in place of the accepted rows'."""
    kv.length += len(rows)


def test_the_bench_of_the_target_says_when_trees_change_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(target.SHAPES, "135m", (2, 32, 64, 4, 2, 97))
    monkeypatch.setattr(SlotKv, "keep", keep_the_first_rows)
    options = ["--dtype", "float32", "--rows", "1", "--context", "16", "--identity", "24", "--repeats", "1"]
    assert main(["target", *options]) == 1
