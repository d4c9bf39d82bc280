"""The measurements of a pair of two tokenizers, as far as they run without models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import translation


def test_prompts_are_as_many_of_both_kinds() -> None:
    found = translation.texts(10)
    assert {kind: len(set(some)) for kind, some in found.items()} == {"chat": 10, "code": 10}
    assert not set(found["chat"]) & set(found["code"])


def test_ratios_are_of_the_same_prompt_and_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"plain": (10.0, 20.0, 40.0), "adaptive": (5.0, 12.0, 60.0)}
    rows = [
        {"draft": draft, "kind": "chat", "arm": arm, "prompt": at, "ms_per_token": ms * slower}
        for draft, slower in (("smollm", 1.0), ("gemma", 2.0))
        for arm, one in times.items()
        for at, ms in enumerate(one)
    ]
    rows += [
        {"draft": draft, "kind": "code", "accepted_tree": held} for draft, held in (("smollm", 4.0), ("gemma", 3.0))
    ]
    monkeypatch.setitem(translation.PARTS, "rig", lambda *_: iter(rows))
    monkeypatch.setattr(translation, "TARGETS", dict.fromkeys(("gemma", "smollm"), Path))
    assert translation.main(["rig", "--drafts", "smollm", "gemma", "--json", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    plain, adaptive = (
        {"smollm plain chat": 1.0, "gemma plain chat": 1.0},
        {"smollm adaptive chat": 0.6, "gemma adaptive chat": 0.6},
    )
    assert found["time_of_plain"] == plain | adaptive and found["rows"] == rows
    assert found["time_of_first_draft"]["gemma adaptive chat"] == 2.0 and len(found["time_of_first_draft"]) == 4
    assert found["accepted_of_first_draft"] == {"smollm code": 1.0, "gemma code": 0.75}
