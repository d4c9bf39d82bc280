"""`tools.bench clients`: its percentiles, and a run of several clients on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.tiny_gguf import make_tiny_gguf
from tools.bench import __main__ as bench
from tools.bench import clients


def test_figures_count_all_tokens_and_every_gap() -> None:
    found = clients.figures([[0.1, 0.2, 0.4], [0.3, 0.3, 0.5]], 0.5)
    assert found["tokens_per_s"] == 12
    assert (found["first_ms_p50"], found["first_ms_p95"]) == (200, 290)
    assert found["between_ms_p50"] == 150, "of 100, 200, 0 and 200"


def test_every_level_answers_all_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = make_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "out.json"
    given = ["clients", "--model", str(model), "--clients", "1,3", "--max-tokens", "8", "--json", str(out)]
    assert bench.main(given) == 0
    rows = json.loads(out.read_text())["levels"]
    assert [(row["policy"], row["clients"]) for row in rows] == [("plain", 1), ("plain", 3)]
    assert all(row["tokens_per_s"] > 0 and row["between_ms_p95"] >= row["between_ms_p50"] for row in rows)
    assert "tokens_per_s" in capsys.readouterr().out


def test_numbers_of_clients_out_of_range_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["clients", "--clients", "1,999"])
    assert "from 1 to 128" in capsys.readouterr().err


def test_steps_of_engine_and_bare_loop_are_timed_in_turns(tmp_path: Path) -> None:
    model, out = make_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "out.json"
    assert bench.main(["steps", "--model", str(model), "--tokens", "9", "--steps", "8", "--json", str(out)]) == 0
    (row,) = json.loads(out.read_text())
    assert row["context"] == 9 and row["bare / bare"] == 1 and row["exact p50"] > 0
    assert "prompt: exact / engine" in row
