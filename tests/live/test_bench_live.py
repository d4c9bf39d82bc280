"""`tools.bench live` on a tiny model: real gateway, worker and link, several clients at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.tiny_gguf import make_tiny_gguf
from tools.bench import __main__ as bench

pytestmark = pytest.mark.live
PROMPTS = ("Say one.", "Say two.", "Say red.", "Say blue.")


def test_our_arms_answer_alike_alone_and_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = make_tiny_gguf(tmp_path / "a.gguf"), make_tiny_gguf(tmp_path / "b.gguf", unlike=0.05)
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    given = ["live", "--model", str(target), "--draft", str(draft), "--engine", "llamacpp", "--k", "2"]
    given += ["--arms", "plain,colocated,alone,adaptive,ngram", "--levels", "1,2"]
    given += ["--limit", "2", "--max-tokens", "64"]
    assert bench.main([*given, "--prompts", str(prompts), "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    names = ["plain", "colocated k=2", "alone", "alone, 2 cores", "adaptive", "ngram"]
    assert [(row["clients"], row["arm"]) for row in found["rows"]] == [(n, arm) for n in (1, 2) for arm in names]
    assert {row["same_text_as_plain"] for row in found["rows"]} == {"2/2"}, "drafts change no text"
    assert found["prompt_tokens_agree"] and len(found["batches"]) == 3 * len(names), "warm-up is not counted"
    rows = {(row["clients"], row["arm"]): row for row in found["rows"]}
    assert rows[1, "colocated k=2"]["tokens_per_pass"] > 1.2 > rows[1, "plain"]["tokens_per_pass"]
    assert rows[1, "alone, 2 cores"]["cores"] == "2" and rows[2, "alone"]["throughput"]["alone"] == 1
    assert not any(rows[level, "alone"]["worker_core_ms"][0] for level in (1, 2)), "it has no worker"
    assert str(tmp_path) not in out.read_text()
    assert out.with_suffix(".md").read_text().count("\n| ") == 1 + len(found["rows"])
    assert "colocated k=2" in capsys.readouterr().out
