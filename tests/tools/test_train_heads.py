"""Training heads on a tiny target's own text: better than before, resumed, and measured on prompts held back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cloud_gateway.models.drafts.medusa import Heads, load
from cloud_gateway.models.target_model.load import folder_digest
from tests.support.tiny_target import make_tiny_target
from tools import train_heads
from tools.train_heads import IGNORED, fresh, labels, measure

WIDTH = 4


def test_a_label_is_the_token_further_on_in_the_same_completion() -> None:
    heads = fresh(torch.zeros(9, WIDTH), torch.tensor([5, 6, 5, 8, -1]), 2, 2, 3)
    assert heads.tokens.tolist() == [5, 6, 8]
    found = labels(heads, torch.tensor([5, 6, 8, 7, -1, 6, 5]))
    assert found.tolist() == [
        [1, 2],
        [2, IGNORED],
        [IGNORED] * 2,
        [IGNORED] * 2,
        [IGNORED] * 2,
        [0, IGNORED],
        [IGNORED] * 2,
    ]


def test_heads_that_begin_expect_the_targets_next_token() -> None:
    embedding = torch.eye(WIDTH)
    heads = fresh(embedding, torch.tensor([0, 1, 2, 3]), 2, 2, 2)
    assert len(heads.tokens) == 2 and heads(embedding[1]).argmax(-1).tolist() == [1, 1]


def test_only_right_tokens_of_the_same_completion_count() -> None:
    tokens = torch.tensor([0, 1, 1, -1, 2, 2])
    heads = Heads(torch.zeros(1, WIDTH, 1), torch.zeros(1, 1, WIDTH), torch.eye(WIDTH), torch.arange(WIDTH))
    expecting = torch.eye(WIDTH)[[1, 0, 3, 3, 2, 3]]
    expecting[1, 1] = 0.5
    (row,) = measure(heads, expecting, tokens)
    assert row == {"head": 0, "places": 3, "right": pytest.approx(2 / 3, abs=1e-3), "in 3": 1.0}


def test_the_command_trains_resumes_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, prompts, out = make_tiny_target(tmp_path / "model"), tmp_path / "prompts.jsonl", tmp_path / "heads"
    prompts.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in "abcdefgh"))
    options = ["medusa", "--target", str(folder), "--prompts", str(prompts), "--out", str(out), "--threads", "1"]
    options += ["--max-tokens", "24", "--rank", "8", "--json", str(tmp_path / "figures")]

    def run(steps: str, *more: str) -> tuple[int, float]:
        """Exit status, and how often the first head is right on what it was trained on."""
        status = train_heads.main([*options, "--minutes", "10", "--steps", steps, *more])
        assert status or json.loads((tmp_path / "figures").read_text())["held"] == 2 * 25
        text = load_file(tmp_path / "heads.text")
        rows = measure(load(out, folder_digest(folder)), text["known.hidden"].float(), text["known.tokens"])
        return status, float(str(rows[0]["right"]))

    status, untrained = run("0")
    before = load(out, folder_digest(folder))
    assert status == 0 and not before.up.any()
    written = (tmp_path / "heads.text").stat().st_mtime_ns
    status, trained = run("300")
    after = load(out, folder_digest(folder))
    assert status == 0 and after.up.any() and (tmp_path / "heads.text").stat().st_mtime_ns == written
    assert trained > untrained + 0.2
    run("0")
    assert torch.equal(load(out, folder_digest(folder)).up, after.up), "it goes on from where it was"
    capsys.readouterr()
    assert run("0", "--max-tokens", "25")[0] != 0
    assert "other options" in capsys.readouterr().err
