"""`tools.bench amusd` on tiny models: a gateway with its own worker, one on two cores, and every arm's text alike."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.tiny_gguf import make_tiny_gguf
from tools.bench import __main__ as bench

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="draft and target need a core each"),
]


def test_every_method_has_a_row_and_the_same_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = make_tiny_gguf(tmp_path / "a.gguf"), make_tiny_gguf(tmp_path / "b.gguf", unlike=0.05)
    out = tmp_path / "out.json"
    given = ["amusd", "--model", str(target), "--draft", str(draft), "--engine", "llamacpp", "--k", "1", "2"]
    given += ["--text", "chat", "refactoring", "--limit", "1", "--max-tokens", "64", "--json", str(out)]
    assert bench.main(given) == 0
    found = json.loads(out.read_text())
    methods = ["plain", "plain, 2 cores", "speculative", "speculative, 2 cores", "amusd", "adaptive"]
    assert [(row["text"], row["method"]) for row in found["rows"]] == [
        (kind, method) for kind in ("chat", "refactoring") for method in methods
    ]
    assert {row["same text"] for row in found["rows"]} == {"1/1"}, "drafts change no text"
    batches = {(one["arm"], one["number"]): one for one in found["batches"]}
    assert sum(batches["amusd", number]["answers"][0]["drafted"] for number in (0, 1)) > 0
    assert batches["amusd", 0]["worker_core_s"] >= 0
    assert batches["amusd", 1]["answers"][0]["prompt_tokens"] > 2 * batches["amusd", 0]["answers"][0]["prompt_tokens"]
    assert [gain["method"] for gain in found["gains"]] == ["amusd", "adaptive"] * 3
    assert out.with_suffix(".svg").stat().st_size > 1000 and str(tmp_path) not in out.read_text()
    assert "geometric mean" in capsys.readouterr().out
