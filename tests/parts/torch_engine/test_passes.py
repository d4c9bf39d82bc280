"""`tools.parts.torch_engine.passes`: times, and whether trees change the text of a tiny model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cloud_gateway.parts.torch_engine.forward import SlotKv
from tools.parts.torch_engine import passes


def test_the_bench_of_the_target_finds_trees_and_plain_decoding_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(passes.SHAPES, "135m", (2, 32, 64, 4, 2, 97))
    out = tmp_path / "target.json"
    options = ["--dtype", "float32", "--rows", "1", "3", "--context", "16", "--identity", "24", "--repeats", "2"]
    assert passes.main([*options, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["same"] == found["of"] == 24 and 5 < found["passes"] < 24
    assert [cell["rows"] for cell in found["cells"]] == [1, 3] and all(cell["pass_ms"] > 0 for cell in found["cells"])


def keep_the_first_rows(kv: SlotKv, rows: Sequence[int]) -> None:
    """Planted fault: the KV entries of rejected siblings stay in place of the accepted rows'."""
    kv.length += len(rows)


def test_the_bench_of_the_target_says_when_trees_change_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(passes.SHAPES, "135m", (2, 32, 64, 4, 2, 97))
    monkeypatch.setattr(SlotKv, "keep", keep_the_first_rows)
    options = ["--dtype", "float32", "--rows", "1", "--context", "16", "--identity", "24", "--repeats", "1"]
    assert passes.main([*options]) == 1
