"""`tools.bench sources`: its arms on tiny models, its figures, and its prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from cloud_gateway.core.requests.request import Usage
from cloud_gateway.models.drafts.medusa import Heads
from cloud_gateway.models.target_model.load import folder_digest
from edgespec.core.errors import ConfigError
from edgespec.lab.tune import arms
from edgespec.lab.tune.arms import ARMS, Arm
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import load_tiny, make_tiny_target
from tools.bench import sources
from tools.bench.__main__ import main
from tools.bench.source_prompts import TEXTS
from tools.train_heads import eagle
from tools.train_heads.medusa import fresh
from tools.train_heads.text import states


def test_figures_are_sums_over_prompts_and_a_median_of_times() -> None:
    plain = [Usage(completion_tokens=11, rounds=11, decode_s=1.0), Usage(completion_tokens=11, rounds=11, decode_s=2.0)]
    found = [
        Usage(completion_tokens=11, rounds=5, drafted={"lookup": 20}, accepted={"lookup": 6}, decode_s=0.5),
        Usage(completion_tokens=11, rounds=6, drafted={"local": 5}, accepted={"local": 5}, decode_s=1.0),
    ]
    row = sources.figures("edit", "merge", found, plain)
    assert row["tokens / round"] == 2 and row["accepted / drafted"] == 0.44
    assert row["ms / token"] == 75 and row["/ first arm"] == 0.5 and row["accepted"] == "lookup 6, local 5"


def test_self_draft_and_heads_have_rows_where_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sources.TEXTS, "chat", ("hello there",))
    always = replace(ARMS["self"].asks, policy="colocated", k=2)  # `adaptive` may find that it does not pay
    monkeypatch.setattr(arms, "ARMS", {**ARMS, "self": Arm(always, "self")})
    seen, figures = dict[str, Usage](), sources.figures
    monkeypatch.setattr(
        sources,
        "figures",
        lambda kind, arm, found, base: seen.update({arm: found[0]}) or figures(kind, arm, found, base),
    )
    folder = make_tiny_target(tmp_path / "target", vocab=320, layers=3)
    draft, heads, out = make_tiny_gguf(tmp_path / "draft.gguf", vocab=320), tmp_path / "heads", tmp_path / "out"
    model = load_tiny(folder)
    embedding = model.get_output_embeddings().weight.detach()
    made: Heads = fresh(embedding, torch.arange(320), 2, 4)
    made.save(heads, folder_digest(folder))
    text = states(model, [[[5, 6]]], 8)
    text = text._replace(states=text.states.float())
    eagle.fresh(32, embedding, text, 320).save(tmp_path / "eagle", folder_digest(folder))
    options = ["sources", "--target", str(folder), "--draft", str(draft), "--text", "chat", "--max-tokens", "8"]
    files = ["--heads", str(heads), "--eagle", str(tmp_path / "eagle")]
    assert main([*options, "--layers", "0", "2", *files, "--json", str(out)]) == 0
    rows = {row["arm"]: row for row in json.loads(out.read_text())["rows"]}
    assert list(rows) == ["plain", "lookup", "medusa", "eagle", "colocated", "draft", "self", "merge"]
    assert rows["self"]["local passes"] > 0 == rows["medusa"]["local passes"] == rows["eagle"]["local passes"]
    for name in ("medusa", "eagle"):
        assert seen[name].sources[name]["why"] is None or seen[name].sources[name]["proposed"] > 0
        assert list(seen[name].sources) == [name] and name in seen["merge"].sources
        assert name not in seen["lookup"].sources
    assert main([*options, "--arms", "plain", "medusa"]) == ConfigError.exit_code
    assert "The arm medusa cannot run: give --heads." in capsys.readouterr().err
    assert main([*options, "--arms", "plain", "eagle"]) == ConfigError.exit_code
    assert "The arm eagle cannot run: give --eagle." in capsys.readouterr().err


def test_every_kind_has_several_different_prompts() -> None:
    assert set(TEXTS) == {"chat", "edit", "code"}
    assert all(len(set(prompts)) == len(prompts) >= 3 for prompts in TEXTS.values())
