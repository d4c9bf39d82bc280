"""The benchmark of frames measures frames that the link would take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
