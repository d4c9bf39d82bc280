"""`tools.bench sources`: its arms on tiny models, its figures, and its prompts."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from cloud_gateway.core.requests.request import Times, Usage
from cloud_gateway.core.sources.heads import HeadSource
from cloud_gateway.models.drafts.medusa import Heads
from cloud_gateway.models.target_model.load import folder_digest
from edgespec.core.errors import ConfigError
from edgespec.lab.tune import arms
from edgespec.lab.tune.arms import ARMS, Arm
from edgespec.shared import models
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import load_tiny, make_tiny_target
from tools.bench import sources
from tools.bench.__main__ import main
from tools.bench.source_prompts import TEXTS
from tools.deep_target import deepened_name
from tools.train import eagle
from tools.train.medusa import fresh
from tools.train.text import lesson, pairs


def used(rounds: int, decode_s: float, **counts: dict[str, int]) -> Usage:
    return Usage(completion_tokens=11, rounds=rounds, times=Times(decode_s=decode_s), **counts)  # type: ignore[arg-type]


def test_figures_are_sums_over_prompts_and_a_median_of_times() -> None:
    plain = [used(11, 1.0), used(11, 2.0)]
    found = [
        used(5, 0.5, drafted={"lookup": 20}, accepted={"lookup": 6}),
        used(6, 1.0, drafted={"local": 5}, accepted={"local": 5}),
    ]
    lookup = [used(8, 0.8), used(8, 1.2)]
    base, best, row = sources.figures("copy", {"plain": plain, "lookup": lookup, "merge": found})
    assert row["tokens / round"] == 2 and row["accepted / drafted"] == 0.44
    assert row["ms / token"] == 68.18 and row["/ plain"] == 0.5 and row["accepted"] == "lookup 6, local 5"
    assert base["/ plain"] == best["/ best source"] == 1 and row["/ best source"] == 0.729
    assert "/ k = 2" not in row, "that arm did not run"


def test_a_completion_without_a_time_is_left_out() -> None:
    one, two = Usage(completion_tokens=1, rounds=1), Usage(completion_tokens=2, rounds=2, times=Times(decode_s=0.1))
    (row,) = sources.figures("chat", {"plain": [one, two]})
    assert (row["prompts"], row["ms / token"]) == (1, 50)
    assert sources.figures("chat", {"plain": [one]}) == []


def test_self_draft_and_heads_have_rows_where_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    always = replace(ARMS["self"].asks, policy="colocated", k=2)  # `adaptive` may find that it does not pay
    monkeypatch.setattr(arms, "ARMS", {**ARMS, "self": Arm(always, "self")})
    monkeypatch.setattr(HeadSource, "state", lambda source: [])  # each completion tries its heads
    seen, figures = dict[str, Usage](), sources.figures

    def kept(kind: str, found: dict[str, list[Usage]]) -> list[dict[str, Any]]:
        seen.update({name: usages[0] for name, usages in found.items()})
        return figures(kind, found)

    monkeypatch.setattr(sources, "figures", kept)
    folder = make_tiny_target(tmp_path / "target", vocab=320, layers=3)
    draft, heads, out = make_tiny_gguf(tmp_path / "draft.gguf", vocab=320), tmp_path / "heads", tmp_path / "out.json"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"turns": ["hello there", "and then"]}\n{"prompt": "x = 1", "kind": "code"}\n')
    model = load_tiny(folder)
    embedding = model.get_output_embeddings().weight.detach()
    made: Heads = fresh(embedding, torch.arange(320), 2, 4)
    made.save(heads, folder_digest(folder))
    eagle.fresh(32, embedding, pairs([lesson(model, [[5, 6]], 8)]), 320).save(tmp_path / "eagle", folder_digest(folder))
    options = ["sources", "--target", str(folder), "--draft", str(draft), "--max-tokens", "8"]
    options += ["--prompts", str(prompts)]
    files = ["--heads", str(heads), "--eagle", str(tmp_path / "eagle")]
    assert main([*options, "--layers", "0", "2", *files, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert [row["text"] for row in found["rows"]] == ["chat"] * 8 + ["code"] * 8
    assert all(row["prompts"] == 1 and row["/ plain"] and row["/ k = 2"] for row in found["rows"])
    assert (tmp_path / "out.png").stat().st_size > 1000 and (tmp_path / "out.svg").exists()
    rows = {row["arm"]: row for row in found["rows"]}
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


def test_the_deep_target_is_that_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tools.deep_target.require_memory", lambda *_: None)
    models.model_dir().mkdir(parents=True)
    base = models.model_dir() / models.QUANTISED.file
    base.touch()
    monkeypatch.setattr(models, "quantised", lambda: base)
    make_tiny_target(models.model_dir() / deepened_name(models.QUANTISED.file, 2), vocab=320)
    draft, out = make_tiny_gguf(tmp_path / "draft.gguf", vocab=320), tmp_path / "out.json"
    options = ["sources", "--target", "deep", "--blocks", "2", "--draft", str(draft), "--arms", "plain"]
    assert main([*options, "--text", "chat", "--limit", "1", "--max-tokens", "4", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["target"] == "deep" and [row["arm"] for row in found["rows"]] == ["plain"]


def asked(path: Path | None, *kinds: str, limit: int | None = None) -> list[tuple[str, str]]:
    return sources.prompts_of(Namespace(prompts=path, text=kinds, limit=limit))


def test_prompts_of_a_file_are_taken_by_kind_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "kind": "code"}\n\n{"prompt": "b"}\n{"turns": ["c", "d"], "kind": "chat"}\n')
    assert asked(path, "chat", "copy", "code") == [("chat", "b"), ("chat", "c"), ("code", "a")]
    assert asked(path, "code", "chat", limit=1) == [("code", "a"), ("chat", "b")]
    assert asked(None, "copy", limit=2) == [("copy", prompt) for prompt in TEXTS["copy"][:2]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"prompt": "a", "kind": "poem"}', "of the kind poem; there are chat, copy, code"),
        (b'{"prompt": "a", "kind": "code"}', "no prompt of the kind chat or copy"),
        (b'{"prompt": "a"}\n{"text": "b"}', "Line 2 of"),
        (b"[1]", "Line 1 of"),
        (b"\xff", "cannot be read"),
        (b"\n", "has no prompts"),
    ],
)
def test_prompts_that_cannot_be_used_are_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        asked(path, "chat", "copy")


def test_every_kind_has_several_different_prompts() -> None:
    assert set(TEXTS) == {"chat", "copy", "code"}
    assert all(len(set(prompts)) == len(prompts) >= 3 for prompts in TEXTS.values())
