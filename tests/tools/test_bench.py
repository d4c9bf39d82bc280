"""The benchmark of frames measures frames that the link would take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cloud_gateway.models.target_model.cache import SlotKv
from tools.bench import target
from tools.bench.__main__ import main


def test_it_prints_and_writes_what_a_frame_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "frames.json"
    assert main(["frames", "--frames", "40", "--nodes", "32", "--json", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == figures
    assert figures["tree_bytes"] == 1024 and figures["commit_bytes"] == 256
    assert figures["tree_both_us"] == pytest.approx(
        figures["tree_sign_encode_us"] + figures["tree_verify_decode_us"], abs=0.2
    )


def test_json_without_a_file_only_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frames", "--frames", "20", "--json"]) == 0
    assert "tree_both_us" in json.loads(capsys.readouterr().out)


def test_the_recorders_share_of_a_round_is_part_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rounds", "--traces", "--rounds", "30"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert 0 < figures["recorder_us"] < figures["round_us"]


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
